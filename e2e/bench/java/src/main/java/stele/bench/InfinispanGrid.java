package stele.bench;

import jakarta.transaction.RollbackException;
import jakarta.transaction.TransactionManager;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.infinispan.AdvancedCache;
import org.infinispan.commons.CacheException;
import org.infinispan.configuration.cache.CacheMode;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.configuration.global.GlobalConfigurationBuilder;
import org.infinispan.context.Flag;
import org.infinispan.distribution.LocalizedCacheTopology;
import org.infinispan.distribution.ch.ConsistentHash;
import org.infinispan.manager.DefaultCacheManager;
import org.infinispan.notifications.Listener;
import org.infinispan.notifications.cachemanagerlistener.annotation.ViewChanged;
import org.infinispan.notifications.cachemanagerlistener.event.ViewChangedEvent;
import org.infinispan.topology.CacheTopology;
import org.infinispan.transaction.LockingMode;
import org.infinispan.transaction.TransactionMode;
import org.infinispan.transaction.lookup.EmbeddedTransactionManagerLookup;

/**
 * Infinispan with its defaults but for the number of segments and discovery, which stays on loopback. Embedded it has
 * no client: the clients' process is a member without capacity, which routes by the same hash and holds nothing.
 */
final class InfinispanGrid extends Grid {
    private static final int PORT = 7800;
    private static final int CLIENT_PORT = PORT + 4;
    private final DefaultCacheManager manager;
    private AdvancedCache<String, byte[]> reading;
    private AdvancedCache<String, byte[]> writing;
    private final Map<String, AdvancedCache<String, byte[]>> transactions = new HashMap<>();

    InfinispanGrid(int number, int partitions) throws Exception {
        boolean client = number < 0;
        System.setProperty("jgroups.bind.address", "127.0.0.1");
        System.setProperty("jgroups.bind.port", "" + (client ? CLIENT_PORT : PORT + number));
        System.setProperty("jgroups.fd.port-offset", "1000");
        GlobalConfigurationBuilder global = GlobalConfigurationBuilder.defaultClusteredBuilder();
        global.transport().clusterName("bench").nodeName(client ? "client" : "n" + number)
            .addProperty("configurationFile", "jgroups-bench.xml");
        global.zeroCapacityNode(client);
        manager = new DefaultCacheManager(global.build(), false);
        manager.start();
        manager.addListener(new Views());
        ConfigurationBuilder cache = new ConfigurationBuilder();
        cache.clustering().cacheMode(CacheMode.DIST_SYNC).hash().numOwners(2).numSegments(partitions);
        manager.defineConfiguration("bench", cache.build());
        for (LockingMode kind : LockingMode.values()) {
            ConfigurationBuilder transactional = new ConfigurationBuilder().read(cache.build());
            transactional.transaction().transactionMode(TransactionMode.TRANSACTIONAL).lockingMode(kind)
                .transactionManagerLookup(new EmbeddedTransactionManagerLookup());
            manager.defineConfiguration(kind.name(), transactional.build());
            transactions.put(kind.name(), manager.<String, byte[]>getCache(kind.name()).getAdvancedCache());
        }
        use("bench");
    }

    private void use(String cache) {
        reading = manager.<String, byte[]>getCache(cache).getAdvancedCache();
        writing = reading.withFlags(Flag.IGNORE_RETURN_VALUES);
    }

    /** Every node starts the cache, so that it has a copy. */
    @Override void replicate() {
        ConfigurationBuilder cache = new ConfigurationBuilder();
        cache.clustering().cacheMode(CacheMode.REPL_SYNC);
        manager.defineConfiguration("replicated", cache.build());
        use("replicated");
    }

    /** Notes when the view changes; public, because Infinispan calls it by reflection. */
    @Listener
    public final class Views {
        @ViewChanged
        public void changed(ViewChangedEvent event) {
            viewNanos.set(System.nanoTime());
        }
    }

    @Override byte[] get(String key) {
        return reading.get(key);
    }

    @Override void set(String key, byte[] value) {
        writing.put(key, value);
    }

    /** Kinds are the names of LockingMode; a pessimistic transaction locks each key as it reads it. */
    @Override int transact(String kind, List<String> keys, byte[] value) throws Exception {
        AdvancedCache<String, byte[]> cache = transactions.get(kind);
        TransactionManager manager = cache.getTransactionManager();
        for (int tried = 0; ; tried++) {
            manager.begin();
            try {
                for (String key : keys) {
                    if (kind.equals(LockingMode.PESSIMISTIC.name())) {
                        cache.lock(key);
                    }
                    cache.get(key);
                    cache.withFlags(Flag.IGNORE_RETURN_VALUES).put(key, value);
                }
                manager.commit();
                return tried;
            } catch (RollbackException | CacheException error) {
                if (manager.getTransaction() != null) {
                    manager.rollback();
                }
            }
        }
    }

    private LocalizedCacheTopology topology() {
        return reading.getDistributionManager().getCacheTopology();
    }

    @Override boolean isQuiet(int members) {
        LocalizedCacheTopology found = topology();
        int all = members + 1; // with the clients' process
        return manager.getMembers().size() == all && found.getActualMembers().size() == all
            && found.getPhase() == CacheTopology.Phase.NO_REBALANCE && found.getPendingCH() == null;
    }

    @Override String[][] table() {
        ConsistentHash hash = topology().getCurrentCH();
        String[][] rows = new String[hash.getNumSegments()][];
        for (int segment = 0; segment < rows.length; segment++) {
            rows[segment] = hash.locateOwnersForSegment(segment).stream().map(Object::toString).toArray(String[]::new);
        }
        return rows;
    }
}
