package com.hazelcast.internal.partition.impl;

import com.hazelcast.cluster.Address;
import com.hazelcast.cluster.Member;
import com.hazelcast.cluster.impl.MemberImpl;
import com.hazelcast.instance.BuildInfoProvider;
import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.MigrationInfo;
import com.hazelcast.internal.partition.PartitionReplica;
import com.hazelcast.internal.partition.PartitionReplicaInterceptor;
import com.hazelcast.internal.partition.membergroup.SingleMemberGroup;
import com.hazelcast.spi.partitiongroup.MemberGroup;
import com.hazelcast.version.MemberVersion;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import stele.bench.Planner;
import stele.bench.Stopwatch;

/**
 * The two steps of Hazelcast's repartitioning task: PartitionStateGeneratorImpl.arrange, then MigrationPlanner for
 * each partition. It is in Hazelcast's package because MigrationPlanner is visible there only. Hazelcast plans all
 * seven replica indexes whatever the number of backups is; `replicas` only cuts the rows that are shown.
 */
public final class HazelcastPlanner implements Planner {
    private static final PartitionReplicaInterceptor NOTHING = (partition, index, from, to) -> { };
    private static final int PORT = 5701;

    private final PartitionStateGeneratorImpl generator = new PartitionStateGeneratorImpl();
    private final Map<PartitionReplica, Integer> numbers = new HashMap<>();
    private PartitionReplica local;
    private List<Member> staying;
    private int replicas;
    private PartitionReplica[][] start;
    private PartitionReplica[][] next;
    private int migrations; // kept, so that no compiler finds the second step to be without use

    @Override
    public void prepare(int members, int partitions, int replicas, String event) throws Exception {
        List<Member> all = members(members + 1);
        local = PartitionReplica.from(all.get(0));
        this.replicas = replicas;
        PartitionReplica[][] empty = new PartitionReplica[partitions][InternalPartition.MAX_REPLICA_COUNT];
        start = generator.arrange(groups(all.subList(0, members)), table(empty));
        staying = event.equals("join") ? all : all.subList(0, members - 1);
        if (event.equals("crash")) {
            repair(start, PartitionReplica.from(all.get(members - 1)));
        }
        next = null;
    }

    private List<Member> members(int count) throws Exception {
        numbers.clear();
        MemberVersion version = MemberVersion.of(BuildInfoProvider.getBuildInfo().getVersion());
        List<Member> made = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Address address = new Address("127.0.0.1", PORT + i);
            made.add(new MemberImpl(address, version, i == 0, new UUID(0, i + 1)));
            numbers.put(PartitionReplica.from(made.get(i)), i);
        }
        return made;
    }

    private static Collection<MemberGroup> groups(List<Member> members) {
        Collection<MemberGroup> groups = new ArrayList<>();
        members.forEach(member -> groups.add(new SingleMemberGroup(member)));
        return groups;
    }

    private InternalPartition[] table(PartitionReplica[][] rows) {
        InternalPartition[] table = new InternalPartition[rows.length];
        for (int i = 0; i < rows.length; i++) {
            table[i] = new InternalPartitionImpl(i, local, rows[i].clone(), 0, NOTHING);
        }
        return table;
    }

    /** As Hazelcast repairs a table after a crash: the dead is taken out, the hottest backup becomes the owner. */
    private static void repair(PartitionReplica[][] rows, PartitionReplica dead) {
        for (PartitionReplica[] row : rows) {
            for (int k = 0; k < row.length; k++) {
                if (dead.equals(row[k])) {
                    row[k] = null;
                }
            }
            for (int k = 1; row[0] == null && k < row.length; k++) {
                row[0] = row[k];
                row[k] = null;
            }
        }
    }

    @Override
    public long[] plan() {
        Collection<MemberGroup> groups = groups(staying);
        InternalPartition[] table = table(start);
        Stopwatch watch = new Stopwatch();
        next = generator.arrange(groups, table);
        watch.next();
        migrations = migrations(table, next);
        return watch.stop();
    }

    private static int migrations(InternalPartition[] table, PartitionReplica[][] next) {
        MigrationPlanner planner = new MigrationPlanner();
        int count = 0;
        for (int i = 0; i < next.length; i++) {
            int partition = i;
            List<MigrationInfo> planned = new LinkedList<>();
            planner.planMigrations(i, table[i].getReplicasCopy(), next[i],
                (source, sourceCurrent, sourceNew, destination, destinationCurrent, destinationNew) ->
                    planned.add(new MigrationInfo(partition, source, destination, sourceCurrent, sourceNew,
                        destinationCurrent, destinationNew)));
            planner.prioritizeCopiesAndShiftUps(planned);
            count += planned.size();
        }
        return count;
    }

    @Override
    public int[][] current() {
        return shown(start);
    }

    @Override
    public int[][] target() {
        return shown(next);
    }

    private int[][] shown(PartitionReplica[][] rows) {
        int[][] shown = new int[rows.length][replicas];
        for (int i = 0; i < rows.length; i++) {
            for (int k = 0; k < replicas; k++) {
                shown[i][k] = rows[i][k] == null ? -1 : numbers.get(rows[i][k]);
            }
        }
        return shown;
    }
}
