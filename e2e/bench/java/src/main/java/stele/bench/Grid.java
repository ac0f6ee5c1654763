package stele.bench;

import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;

/** One process of a grid: a data member (number 0 or more) or its clients' process (-1). */
abstract class Grid {
    /** Maps (of Stele: keyspaces) that the entries are in, by their keys. */
    static final int MAPS = Integer.getInteger("bench.maps", 1);

    /** When the list of members changed last (System.nanoTime); 0 when it did not since it was set to 0. */
    final AtomicLong viewNanos = new AtomicLong();

    abstract byte[] get(String key);

    abstract void set(String key, byte[] value);

    /** Read and write from now on a map that every member has a whole copy of. Stele's members decide that. */
    void replicate() { }

    static int mapOf(String key) {
        return Math.floorMod(key.hashCode(), MAPS);
    }

    /** Leave in order: give everything to others, then stop. */
    void leave() {
        throw new UnsupportedOperationException("ask a member");
    }

    /** Read these keys and set them, as one transaction of this kind; returns how often it was tried again. */
    int transact(String kind, List<String> keys, byte[] value) throws Exception {
        throw new UnsupportedOperationException("ask the clients' process");
    }

    /** Whether there are so many members and the system itself says that nothing is on its way. */
    abstract boolean isQuiet(int members);

    /** For each partition who owns it and who has its backup, as opaque names. */
    abstract String[][] table();

    /** Whether every partition has owner and backup, and each of the members owns some. */
    final boolean isSpread(int members) {
        Set<String> owners = new HashSet<>();
        for (String[] row : table()) {
            if (row.length < 2 || Arrays.asList(row).contains(null)) {
                return false;
            }
            owners.add(row[0]);
        }
        return owners.size() == members;
    }

    static Grid start(String system, int number, int partitions) throws Exception {
        return switch (system) {
            case "hazelcast" -> number < 0 ? new HazelcastGrid.Client() : new HazelcastGrid.Member(number, partitions);
            case "infinispan" -> new InfinispanGrid(number, partitions);
            case "stele-cluster", "stele-proxy" -> new SteleClients(
                system, System.getProperty("stele.members"), System.getProperty("stele.ca"), System.getProperty("stele.password"));
            case "lettuce-cluster", "lettuce" -> new LettuceClients(
                system, System.getProperty("stele.members"), System.getProperty("stele.ca"), System.getProperty("stele.password"));
            default -> throw new IllegalArgumentException("unknown system " + system);
        };
    }
}
