package stele.bench;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.infinispan.distribution.ch.ConsistentHash;
import org.infinispan.distribution.ch.impl.DefaultConsistentHash;
import org.infinispan.distribution.ch.impl.DefaultConsistentHashFactory;
import org.infinispan.remoting.transport.Address;

/**
 * Infinispan's DefaultConsistentHashFactory, of its factories the one that balances best: updateMembers, which
 * drops who is gone, then rebalance. A leave and a crash are the same to it, and there are no ordered migrations.
 */
final class InfinispanPlanner implements Planner {
    private final DefaultConsistentHashFactory factory = DefaultConsistentHashFactory.getInstance();
    private final Map<Address, Integer> numbers = new HashMap<>();
    private final Map<Address, Float> capacities = new HashMap<>();
    private List<Address> staying;
    private DefaultConsistentHash start;
    private DefaultConsistentHash next;

    @Override
    public void prepare(int members, int partitions, int replicas, String event) {
        numbers.clear();
        capacities.clear();
        List<Address> all = new ArrayList<>();
        for (int i = 0; i <= members; i++) {
            Address address = Address.random("member-" + i);
            all.add(address);
            numbers.put(address, i);
            capacities.put(address, 1f);
        }
        List<Address> first = new ArrayList<>(all.subList(0, members));
        start = factory.rebalance(factory.create(replicas, partitions, first, capacities));
        staying = event.equals("join") ? all : new ArrayList<>(all.subList(0, members - 1));
        next = null;
    }

    @Override
    public long[] plan() {
        Stopwatch watch = new Stopwatch();
        DefaultConsistentHash updated = factory.updateMembers(start, staying, capacities);
        watch.next();
        next = factory.rebalance(updated);
        return watch.stop();
    }

    @Override
    public int[][] current() {
        return rows(start);
    }

    @Override
    public int[][] target() {
        return rows(next);
    }

    private int[][] rows(ConsistentHash table) {
        int[][] rows = new int[table.getNumSegments()][];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = table.locateOwnersForSegment(i).stream().mapToInt(numbers::get).toArray();
        }
        return rows;
    }
}
