package stele.bench;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/** The clients of a grid; what each request means is in e2e/bench/copy_load.py, which does the same over RESP. */
final class Clients {
    private static final int LOAD_THREADS = 8;
    private static final int SAMPLES_MAX = 1 << 18;
    private static final long STATS_MILLIS_MAX = 60_000;
    private final Grid grid;
    private final List<Samples> reads = new ArrayList<>();
    private final List<Samples> writes = new ArrayList<>();
    private final List<Thread> threads = new ArrayList<>();
    private final AtomicLong stale = new AtomicLong();
    private final AtomicLong missed = new AtomicLong();
    private final Map<String, AtomicLong> errors = new ConcurrentHashMap<>();
    private AtomicIntegerArray tried;
    private AtomicIntegerArray acked;
    private int keys;
    private int size;
    private volatile boolean live;

    Clients(Grid grid) {
        this.grid = grid;
    }

    String answer(String[] words) throws Exception {
        return switch (words[0]) {
            case "load" -> load(Long.parseLong(words[1]), Integer.parseInt(words[2]));
            case "live" -> live(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
            case "lag" -> lag();
            case "stats" -> stats(Long.parseLong(words[1]), Long.parseLong(words[2]));
            case "course" -> course(Long.parseLong(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]));
            case "end" -> end();
            case "verify" -> verify();
            default -> throw new IllegalArgumentException("unknown request");
        };
    }

    /** When operations of one thread were due, were begun and ended; an end of -1 means that it failed. */
    private static final class Samples {
        private final long[] due = new long[SAMPLES_MAX];
        private final long[] begun = new long[SAMPLES_MAX];
        private final long[] ended = new long[SAMPLES_MAX];
        private volatile int count;

        void add(long dueAt, long begunAt, long endedAt) {
            int place = count;
            if (place < SAMPLES_MAX) {
                due[place] = dueAt;
                begun[place] = begunAt;
                ended[place] = endedAt;
                count = place + 1;
            }
        }

        long last() {
            return count == 0 ? 0 : due[count - 1];
        }
    }

    interface Work {
        void on(int key) throws Exception;
    }

    private static byte[] value(int key, int version, int size) {
        ByteBuffer made = ByteBuffer.allocate(size);
        made.putInt(key).putInt(version);
        long seed = key * 0x9E3779B97F4A7C15L + version * 0xD1B54A32D192ED03L + 1;
        while (made.remaining() >= Long.BYTES) {
            seed ^= seed << 13;
            seed ^= seed >>> 7;
            seed ^= seed << 17;
            made.putLong(seed);
        }
        return made.array();
    }

    private static int version(byte[] value, int key) {
        ByteBuffer read = ByteBuffer.wrap(value);
        return value.length >= 2 * Integer.BYTES && read.getInt() == key ? read.getInt() : -1;
    }

    private void all(Work work) throws Exception {
        AtomicInteger next = new AtomicInteger();
        Callable<Void> some = () -> {
            for (int key = next.getAndIncrement(); key < keys; key = next.getAndIncrement()) {
                work.on(key);
            }
            return null;
        };
        ExecutorService pool = Executors.newFixedThreadPool(LOAD_THREADS);
        for (Future<Void> each : pool.invokeAll(java.util.Collections.nCopies(LOAD_THREADS, some))) {
            each.get();
        }
        pool.shutdown();
    }

    private String load(long bytes, int valueSize) throws Exception {
        size = valueSize;
        keys = (int) (bytes / size);
        tried = new AtomicIntegerArray(keys);
        acked = new AtomicIntegerArray(keys);
        long begin = System.nanoTime();
        all(key -> grid.set("k" + key, value(key, 0, size)));
        return String.format(Locale.ROOT, "{\"entries\":%d,\"seconds\":%.3f}", keys, (System.nanoTime() - begin) / 1e9);
    }

    private String live(int rate, int number) {
        live = true;
        for (int each = 0; each < number; each++) {
            begin(rate, each, number, reads, this::read);
            begin(rate, each, number, writes, this::write);
        }
        threads.forEach(Thread::start);
        return "{}";
    }

    private void begin(int rate, int number, int of, List<Samples> all, Work work) {
        Samples samples = new Samples();
        all.add(samples);
        threads.add(new Thread(() -> paced(1_000_000_000L * of / rate, number, of, samples, work)));
    }

    private void paced(long gap, int number, int of, Samples samples, Work work) {
        SplittableRandom chance = new SplittableRandom(number);
        long due = System.nanoTime() + gap * number / of;
        while (live) {
            due += gap;
            for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                LockSupport.parkNanos(wait);
            }
            long begun = System.nanoTime();
            try {
                work.on(chance.nextInt(keys / of) * of + number);
                samples.add(due, begun, System.nanoTime());
            } catch (Exception error) {
                errors.computeIfAbsent(error.getClass().getSimpleName(), name -> new AtomicLong()).incrementAndGet();
                samples.add(due, begun, -1);
            }
        }
    }

    private void read(int key) {
        int floor = acked.get(key);
        byte[] value = grid.get("k" + key);
        if (value == null) {
            missed.incrementAndGet();
        } else if (version(value, key) < floor) {
            stale.incrementAndGet();
        }
    }

    private void write(int key) {
        int version = tried.incrementAndGet(key);
        grid.set("k" + key, value(key, version, size));
        acked.set(key, version);
    }

    private String lag() {
        long oldest = Long.MAX_VALUE;
        for (List<Samples> kind : List.of(reads, writes)) {
            for (Samples each : kind) {
                oldest = Math.min(oldest, each.last());
            }
        }
        return String.format(Locale.ROOT, "{\"seconds\":%.6f}", (System.nanoTime() - oldest) / 1e9);
    }

    private String stats(long begin, long end) throws InterruptedException {
        return "{\"get\":" + summary(reads, begin, end) + ",\"set\":" + summary(writes, begin, end) + "}";
    }

    /** Waits until every operation that was due has ended. */
    private void settle(List<Samples> all, long end) throws InterruptedException {
        long limit = System.currentTimeMillis() + STATS_MILLIS_MAX;
        while (live && System.currentTimeMillis() < limit && all.stream().anyMatch(each -> each.last() < end)) {
            Thread.sleep(10);
        }
    }

    private String course(long begin, long end, long window) throws InterruptedException {
        return "{\"get\":" + course(reads, begin, end, window) + ",\"set\":" + course(writes, begin, end, window) + "}";
    }

    /** [answered, failed, p99, longest] of each window of so many nanoseconds; all but answered are of what was due in it. */
    private String course(List<Samples> all, long begin, long end, long window) throws InterruptedException {
        settle(all, end);
        int windows = (int) ((end - begin) / window);
        long[] answered = new long[windows];
        long[] failed = new long[windows];
        List<LongStream.Builder> latencies = Stream.generate(LongStream::builder).limit(windows).toList();
        for (Samples each : all) {
            for (int place = 0, to = each.count; place < to; place++) {
                long due = Math.floorDiv(each.due[place] - begin, window);
                long ended = Math.floorDiv(each.ended[place] - begin, window);
                if (0 <= ended && ended < windows) {
                    answered[(int) ended]++;
                }
                if (due < 0 || due >= windows) {
                    continue;
                }
                if (each.ended[place] < 0) {
                    failed[(int) due]++;
                } else {
                    latencies.get((int) due).add(each.ended[place] - each.due[place]);
                }
            }
        }
        return IntStream.range(0, windows).mapToObj(number -> {
            long[] sorted = latencies.get(number).build().sorted().toArray();
            return String.format(Locale.ROOT, "[%d,%d,%.6f,%.6f]",
                answered[number], failed[number], at(sorted, sorted.length, 0.99), at(sorted, sorted.length, 1.0));
        }).collect(Collectors.joining(",", "[", "]"));
    }

    private String summary(List<Samples> all, long begin, long end) throws InterruptedException {
        settle(all, end);
        long[] latencies = new long[all.stream().mapToInt(each -> each.count).sum()];
        int count = 0;
        int failed = 0;
        int answered = 0;
        long longest = 0;
        for (Samples each : all) {
            for (int place = 0, to = each.count; place < to; place++) {
                if (begin <= each.ended[place] && each.ended[place] < end) {
                    answered++;
                }
                if (each.due[place] < begin || each.due[place] >= end || count == latencies.length) {
                    continue;
                }
                if (each.ended[place] < 0) {
                    failed++;
                    continue;
                }
                latencies[count++] = each.ended[place] - each.due[place];
                longest = Math.max(longest, each.ended[place] - each.begun[place]);
            }
        }
        Arrays.sort(latencies, 0, count);
        return String.format(Locale.ROOT,
            "{\"count\":%d,\"failed\":%d,\"answered\":%d,\"p50_seconds\":%.6f,\"p99_seconds\":%.6f,"
                + "\"p999_seconds\":%.6f,\"max_seconds\":%.6f,\"call_max_seconds\":%.6f}",
            count, failed, answered, at(latencies, count, 0.5), at(latencies, count, 0.99), at(latencies, count, 0.999),
            at(latencies, count, 1.0), longest / 1e9);
    }

    private static double at(long[] sorted, int count, double share) {
        return count == 0 ? 0 : sorted[Math.max(0, (int) Math.ceil(share * count) - 1)] / 1e9;
    }

    private String end() throws InterruptedException {
        live = false;
        for (Thread each : threads) {
            each.join();
        }
        StringBuilder told = new StringBuilder();
        errors.forEach((name, number) ->
            told.append(told.length() > 0 ? "," : "").append("\"").append(name).append("\":").append(number));
        return "{\"errors\":{" + told + "},\"stale_reads\":" + stale + ",\"missing_reads\":" + missed + "}";
    }

    private String verify() throws Exception {
        AtomicInteger missing = new AtomicInteger();
        AtomicInteger corrupt = new AtomicInteger();
        AtomicInteger older = new AtomicInteger();
        all(key -> {
            byte[] found = grid.get("k" + key);
            if (found == null) {
                missing.incrementAndGet();
                return;
            }
            int version = version(found, key);
            if (version < 0 || version > tried.get(key) || !Arrays.equals(found, value(key, version, size))) {
                corrupt.incrementAndGet();
            } else if (version < acked.get(key)) {
                older.incrementAndGet();
            }
        });
        return "{\"checked\":" + keys + ",\"missing\":" + missing + ",\"corrupt\":" + corrupt + ",\"older\":" + older + "}";
    }
}
