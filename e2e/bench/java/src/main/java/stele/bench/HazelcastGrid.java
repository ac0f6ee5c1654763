package stele.bench;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.cluster.MembershipEvent;
import com.hazelcast.cluster.MembershipListener;
import com.hazelcast.config.Config;
import com.hazelcast.config.JoinConfig;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.instance.impl.HazelcastInstanceProxy;
import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.PartitionReplica;
import com.hazelcast.map.IMap;
import com.hazelcast.replicatedmap.ReplicatedMap;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.TransactionException;
import com.hazelcast.transaction.TransactionOptions;
import com.hazelcast.transaction.TransactionOptions.TransactionType;
import com.hazelcast.transaction.TransactionalMap;
import java.util.ArrayList;
import java.util.List;

/** Hazelcast with its defaults but for the number of partitions and discovery, which stays on loopback. */
abstract class HazelcastGrid extends Grid {
    private static final int PORT = 5701;
    private static final int MEMBERS_MAX = 4;
    HazelcastInstance instance;
    private final List<IMap<String, byte[]>> maps = new ArrayList<>();
    private ReplicatedMap<String, byte[]> replicated;

    private synchronized IMap<String, byte[]> map(String key) {
        while (maps.size() < MAPS) {
            maps.add(instance.getMap("bench" + maps.size()));
        }
        return maps.get(mapOf(key));
    }

    @Override byte[] get(String key) {
        return replicated == null ? map(key).get(key) : replicated.get(key);
    }

    @Override void set(String key, byte[] value) {
        if (replicated == null) {
            map(key).set(key, value);
        } else {
            replicated.put(key, value);
        }
    }

    @Override void replicate() {
        replicated = instance.getReplicatedMap("replicated");
    }

    /** Talks to the members over TCP and knows who owns which partition. */
    static final class Client extends HazelcastGrid {
        private static final TransactionOptions TWO_PHASE =
            new TransactionOptions().setTransactionType(TransactionType.TWO_PHASE);

        Client() {
            ClientConfig config = new ClientConfig().setClusterName("bench");
            for (int number = 0; number < MEMBERS_MAX - 1; number++) {
                config.getNetworkConfig().addAddress("127.0.0.1:" + (PORT + number));
            }
            instance = HazelcastClient.newHazelcastClient(config);
        }

        @Override int transact(String kind, List<String> keys, byte[] value) {
            for (int tried = 0; ; tried++) {
                TransactionContext context = instance.newTransactionContext(TWO_PHASE);
                context.beginTransaction();
                try {
                    TransactionalMap<String, byte[]> map = context.getMap("transactions");
                    for (String key : keys) {
                        map.getForUpdate(key);
                        map.set(key, value);
                    }
                    context.commitTransaction();
                    return tried;
                } catch (TransactionException error) {
                    context.rollbackTransaction();
                }
            }
        }

        @Override boolean isQuiet(int members) {
            throw new UnsupportedOperationException("ask a member");
        }

        @Override String[][] table() {
            throw new UnsupportedOperationException("ask a member");
        }
    }

    static final class Member extends HazelcastGrid {
        Member(int number, int partitions) {
            Config config = new Config().setClusterName("bench");
            config.setProperty("hazelcast.partition.count", "" + partitions);
            String parallel = System.getProperty("bench.parallel");
            if (parallel != null) {
                config.setProperty("hazelcast.partition.max.parallel.migrations", parallel);
            }
            config.setProperty("hazelcast.phone.home.enabled", "false");
            config.setProperty("hazelcast.socket.bind.any", "false");
            NetworkConfig network = config.getNetworkConfig();
            network.setPort(PORT + number).setPortAutoIncrement(false).setPublicAddress("127.0.0.1:" + (PORT + number));
            network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
            JoinConfig join = network.getJoin();
            join.getAutoDetectionConfig().setEnabled(false);
            join.getMulticastConfig().setEnabled(false);
            join.getTcpIpConfig().setEnabled(true);
            for (int each = 0; each < MEMBERS_MAX; each++) {
                join.getTcpIpConfig().addMember("127.0.0.1:" + (PORT + each));
            }
            instance = Hazelcast.newHazelcastInstance(config);
            instance.getCluster().addMembershipListener(new MembershipListener() {
                @Override public void memberAdded(MembershipEvent event) {
                    viewNanos.set(System.nanoTime());
                }

                @Override public void memberRemoved(MembershipEvent event) {
                    viewNanos.set(System.nanoTime());
                }
            });
        }

        @Override void leave() {
            instance.shutdown();
        }

        @Override boolean isQuiet(int members) {
            return instance.getCluster().getMembers().size() == members
                && instance.getPartitionService().isClusterSafe();
        }

        @Override String[][] table() {
            InternalPartition[] all =
                ((HazelcastInstanceProxy) instance).getOriginal().node.getPartitionService().getInternalPartitions();
            String[][] rows = new String[all.length][2];
            for (int partition = 0; partition < all.length; partition++) {
                for (int place = 0; place < 2; place++) {
                    PartitionReplica replica = all[partition].getReplica(place);
                    rows[partition][place] = replica == null ? null : replica.uuid().toString();
                }
            }
            return rows;
        }
    }
}
