package stele.bench;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Threads that send the next request when the last one is answered. "fill SIZE KEYS THREADS" writes every key once;
 * "steady get|set SIZE KEYS THREADS SECONDS" says how many requests of random keys were answered, and how fast;
 * "transact KIND NUMBER SIZE KEYS THREADS SECONDS" does so for transactions that read and set so many random keys.
 * "memory" says what this process uses of its heap.
 */
final class Steady {
    private static final int COLLECTIONS = 3;
    private static final int COLLECTION_MILLIS = 200;

    private Steady() { }

    static String answer(Grid grid, String[] words) throws Exception {
        int[] numbers = Arrays.stream(words).skip(words[0].equals("fill") ? 1 : 2).mapToInt(Integer::parseInt).toArray();
        return switch (words[0]) {
            case "memory" -> memory();
            case "fill" -> fill(grid, numbers[0], numbers[1], numbers[2]);
            case "steady" -> steady(work(grid, words[1], numbers[0], numbers[1]), numbers[2], numbers[3]);
            default -> {
                Work work = transactions(grid, words[1], numbers[0], numbers[1], numbers[2]);
                yield steady(work, numbers[3], numbers[4]);
            }
        };
    }

    /** All that something still refers to. */
    private static String memory() throws InterruptedException {
        for (int collection = 0; collection < COLLECTIONS; collection++) {
            System.gc();
            Thread.sleep(COLLECTION_MILLIS);
        }
        return "{\"heap_bytes\":" + ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed() + "}";
    }

    /** One request; returns how often it failed. */
    private interface Work {
        long once(SplittableRandom chance) throws Exception;
    }

    private static String fill(Grid grid, int size, int keys, int threads) throws Exception {
        AtomicInteger next = new AtomicInteger();
        Callable<Void> some = () -> {
            for (int key = next.getAndIncrement(); key < keys; key = next.getAndIncrement()) {
                grid.set(name(size, key), value(size, key));
            }
            return null;
        };
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        for (Future<Void> each : pool.invokeAll(Collections.nCopies(threads, some))) {
            each.get();
        }
        pool.shutdown();
        return "{}";
    }

    private static Work work(Grid grid, String operation, int size, int keys) {
        if (operation.equals("get")) {
            return chance -> grid.get(name(size, chance.nextInt(keys))) == null ? 1 : 0;
        }
        byte[] value = value(size, 0);
        return chance -> {
            grid.set(name(size, chance.nextInt(keys)), value);
            return 0;
        };
    }

    /** Keys in order, as programs lock them: two transactions then never wait for each other. */
    private static Work transactions(Grid grid, String kind, int number, int size, int keys) {
        byte[] value = value(size, 0);
        return chance -> {
            List<String> names =
                chance.ints(0, keys).distinct().limit(number).sorted().mapToObj(key -> name(size, key)).toList();
            return grid.transact(kind, names, value);
        };
    }

    private static String name(int size, int key) {
        return "steady-" + size + "-" + key;
    }

    private static byte[] value(int size, int seed) {
        byte[] made = new byte[size];
        SplittableRandom chance = new SplittableRandom(seed);
        for (int place = 0; place < size; place++) {
            made[place] = (byte) chance.nextInt();
        }
        return made;
    }

    private static String steady(Work work, int threads, int seconds) throws Exception {
        long begin = System.nanoTime();
        long end = begin + seconds * 1_000_000_000L;
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<Samples>> all = new ArrayList<>();
        for (int each = 0; each < threads; each++) {
            int seed = each;
            all.add(pool.submit(() -> run(work, seed, end)));
        }
        Samples total = new Samples();
        for (Future<Samples> each : all) {
            total.add(each.get());
        }
        double took = (System.nanoTime() - begin) / 1e9;
        pool.shutdown();
        return total.summary(took);
    }

    private static Samples run(Work work, int seed, long end) throws Exception {
        SplittableRandom chance = new SplittableRandom(seed);
        Samples samples = new Samples();
        for (long begun = System.nanoTime(); begun < end; begun = System.nanoTime()) {
            try {
                samples.failed += work.once(chance);
                samples.add(System.nanoTime() - begun);
            } catch (RuntimeException error) {
                error.printStackTrace();
                samples.failed++;
            }
        }
        return samples;
    }

    /** Latencies in nanoseconds; a read that found nothing and a transaction's retry count as failed. */
    private static final class Samples {
        private long[] nanos = new long[1 << 12];
        private int count;
        private long failed;

        void add(long one) {
            if (count == nanos.length) {
                nanos = Arrays.copyOf(nanos, 2 * count);
            }
            nanos[count++] = one;
        }

        void add(Samples others) {
            for (int place = 0; place < others.count; place++) {
                add(others.nanos[place]);
            }
            failed += others.failed;
        }

        String summary(double seconds) {
            Arrays.sort(nanos, 0, count);
            return String.format(Locale.ROOT,
                "{\"per_second\":%.1f,\"failed\":%d,\"p50_seconds\":%.6f,\"p99_seconds\":%.6f,\"p999_seconds\":%.6f}",
                count / seconds, failed, at(0.5), at(0.99), at(0.999));
        }

        private double at(double share) {
            return count == 0 ? 0 : nanos[Math.max(0, (int) Math.ceil(share * count) - 1)] / 1e9;
        }
    }
}
