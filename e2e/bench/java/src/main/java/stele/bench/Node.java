package stele.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

/**
 * One process of a grid: arguments SYSTEM NUMBER PARTITIONS. Says {"ready": nanos}, then answers one line of JSON to each
 * line of input: await MEMBERS SECONDS | collections | leave | mark | replicate | table, and in the clients' process what
 * e2e/bench/copy_load.py lists, "course BEGIN END WINDOW" in nanoseconds, and what Steady does.
 * Moments are System.nanoTime, which is the clock of Python's time.monotonic_ns.
 */
public final class Node {
    private static final long HELD_NANOS = 1_000_000_000L;
    private static final int POLL_MILLIS = 20;

    private Node() { }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what libraries print must not be taken for an answer
        Grid grid = Grid.start(arguments[0], Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]));
        Clients clients = new Clients(grid);
        out.println("{\"ready\":" + System.nanoTime() + "}");
        out.flush();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(grid, clients, line.trim().split(" ")));
            out.flush();
        }
        System.exit(0);
    }

    private static String answer(Grid grid, Clients clients, String[] words) {
        try {
            return switch (words[0]) {
                case "mark" -> mark(grid);
                case "await" -> await(grid, Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                case "table" -> table(grid);
                case "collections" -> collections();
                case "leave" -> leave(grid);
                case "replicate" -> replicate(grid);
                case "fill", "steady", "transact", "memory" -> Steady.answer(grid, words);
                default -> clients.answer(words);
            };
        } catch (Throwable error) {
            error.printStackTrace();
            return "{\"error\":\"" + error.toString().replaceAll("[^ -!#-\\[\\]-~]", "?") + "\"}";
        }
    }

    private static String mark(Grid grid) {
        grid.viewNanos.set(0);
        return "{}";
    }

    private static String replicate(Grid grid) {
        grid.replicate();
        return "{}";
    }

    private static String leave(Grid grid) {
        grid.leave();
        return "{}";
    }

    /** Garbage collections of this JVM so far, and for how long they stopped it or ran beside it. */
    private static String collections() {
        List<GarbageCollectorMXBean> all = ManagementFactory.getGarbageCollectorMXBeans();
        long count = all.stream().mapToLong(GarbageCollectorMXBean::getCollectionCount).sum();
        long millis = all.stream().mapToLong(GarbageCollectorMXBean::getCollectionTime).sum();
        return "{\"count\":" + count + ",\"millis\":" + millis + "}";
    }

    /** Until all is safe for a second; the moment at which that second began, and that of the change of members. */
    private static String await(Grid grid, int members, int seconds) throws InterruptedException {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        long since = 0;
        while (System.nanoTime() < end) {
            long now = System.nanoTime();
            boolean safe = grid.viewNanos.get() != 0 && grid.isQuiet(members) && grid.isSpread(members);
            since = !safe ? 0 : since == 0 ? now : since;
            if (since != 0 && now - since > HELD_NANOS) {
                return "{\"view\":" + grid.viewNanos + ",\"safe\":" + since + "}";
            }
            Thread.sleep(POLL_MILLIS);
        }
        return "{\"error\":\"not safe in " + seconds + " s\"}";
    }

    private static String table(Grid grid) {
        return Arrays.stream(grid.table())
            .map(row -> Arrays.stream(row).map(each -> each == null ? "null" : "\"" + each + "\"")
                .collect(Collectors.joining(",", "[", "]")))
            .collect(Collectors.joining(",", "{\"rows\":[", "]}"));
    }
}
