package stele;

import io.lettuce.core.ReadFrom;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BiConsumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.ToLongFunction;
import java.util.stream.Collectors;
import redis.clients.jedis.ClusterCommandObjects;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.executors.ClusterCommandExecutor;
import redis.clients.jedis.exceptions.JedisClusterOperationException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.providers.ClusterConnectionProvider;

/**
 * Works on keys through a cluster client until its standard input ends, then prints what it did as JSON.
 *
 * <p>Arguments: jedis, lettuce or lettuce-6, what it does, host and port of one member, how old a read may be in
 * milliseconds, then keys. Each key is worked on by one thread alone. "count" sends INCR: each reply is one more
 * than the reply before, with default options. "die" has the options for members that die: of the first half of
 * the keys it sends SET with the next number, then GET to the owner; of the other half INCR, each once, and counts
 * the failures after which nobody knows whether it was done: each reply is one more than the reply before, and at
 * most as many more as there were of these in between.
 * "read" sends SET, then GET to backups: what is read may be older, but not by more than that time.
 */
public final class CountUp {
    private static final int THREADS = 4;
    private static final int ATTEMPTS = 5;

    private record Write(long doneNanos, long made) {}

    /** The last reply, and how many attempts after it nobody knows of whether they were done. */
    private record Last(long value, long unknown) {}

    private record Commands(
            ToLongFunction<String> increment, BiConsumer<String, String> set, Function<String, String> get) {}

    private final Commands commands;
    private final String what;
    private final long staleNanos;
    private final Map<String, Long> counts = new TreeMap<>();
    private final Map<String, Long> unknown = new TreeMap<>();
    private final List<String> failures = new ArrayList<>();
    private long reads;
    private volatile boolean over;

    private CountUp(Commands commands, String what, long staleNanos) {
        this.commands = commands;
        this.what = what;
        this.staleNanos = staleNanos;
    }

    public static void main(String[] args) throws Exception {
        String what = args[1];
        String host = args[2];
        int port = Integer.parseInt(args[3]);
        long staleNanos = Long.parseLong(args[4]) * 1_000_000;
        String[] keys = java.util.Arrays.copyOfRange(args, 5, args.length);
        if (args[0].equals("jedis")) {
            jedis(what, new HostAndPort(host, port), staleNanos, keys);
        } else {
            lettuce(args[0], what, RedisURI.create(host, port), staleNanos, keys);
        }
    }

    private static void jedis(String what, HostAndPort address, long staleNanos, String[] keys) throws Exception {
        if (what.equals("read")) {
            var config = DefaultJedisClientConfig.builder().readOnlyForRedisClusterReplicas().build();
            try (var provider = new ClusterConnectionProvider(Set.of(address), config);
                    var executor = new ClusterCommandExecutor(provider, 5, Duration.ofSeconds(10))) {
                var objects = new ClusterCommandObjects();
                run(what, staleNanos, keys, new Commands(
                        key -> executor.executeCommand(objects.incr(key)),
                        (key, value) -> executor.executeCommand(objects.set(key, value)),
                        key -> executor.executeCommandToReplica(objects.get(key))));
            }
            return;
        }
        if (what.equals("die")) {
            try (var once = jedis(address, 1); var repeats = jedis(address, 60)) {
                run(what, staleNanos, keys, new Commands(once::incr, repeats::set, repeats::get));
            }
            return;
        }
        try (var client = new JedisCluster(address)) {
            run(what, staleNanos, keys, new Commands(client::incr, client::set, client::get));
        }
    }

    /** The options of docs/reference/clients.md but for the number of attempts. */
    private static JedisCluster jedis(HostAndPort address, int attempts) {
        var config = DefaultJedisClientConfig.builder().build();
        return new JedisCluster(
                Set.of(address), config, attempts, Duration.ofSeconds(30), new ConnectionPoolConfig());
    }

    private static void lettuce(String version, String what, RedisURI address, long staleNanos, String[] keys)
            throws Exception {
        RedisClusterClient client = RedisClusterClient.create(address);
        if (what.equals("die")) {
            client.setOptions(lettuceOptions(version.equals("lettuce")));
        } else if (version.equals("lettuce-6")) {
            client.setOptions(defaultsOfLettuce7());
        }
        try (var connection = client.connect()) {
            if (what.equals("read")) {
                connection.setReadFrom(ReadFrom.REPLICA_PREFERRED);
            }
            var sync = connection.sync();
            run(what, staleNanos, keys, what.equals("die")
                    ? new Commands(
                            sync::incr,
                            (key, value) -> repeated(() -> sync.set(key, value)),
                            key -> repeated(() -> sync.get(key)))
                    : new Commands(sync::incr, sync::set, sync::get));
        } finally {
            client.shutdown();
        }
    }

    /** What docs/reference/clients.md says that Lettuce 6 needs. */
    private static ClusterClientOptions defaultsOfLettuce7() {
        return ClusterClientOptions.builder()
                .validateClusterNodeMembership(false)
                .topologyRefreshOptions(ClusterTopologyRefreshOptions.builder()
                        .enableAllAdaptiveRefreshTriggers()
                        .adaptiveRefreshTriggersTimeout(Duration.ofSeconds(5))
                        .build())
                .build();
    }

    /** The options of docs/reference/clients.md for members that die; Lettuce 6 may not check who is a member. */
    private static ClusterClientOptions lettuceOptions(boolean checksMembers) {
        var refresh = ClusterTopologyRefreshOptions.builder()
                .enableAllAdaptiveRefreshTriggers()
                .adaptiveRefreshTriggersTimeout(Duration.ofMillis(500))
                .enablePeriodicRefresh(Duration.ofSeconds(1))
                .build();
        var builder = ClusterClientOptions.builder();
        if (!checksMembers) {
            builder.validateClusterNodeMembership(false);
        }
        return builder
                .topologyRefreshOptions(refresh)
                .maxRedirects(20)
                .socketOptions(SocketOptions.builder().connectTimeout(Duration.ofSeconds(1)).build())
                .build();
    }

    /** Lettuce sends again what it had not sent; the command under way on a connection that is reset fails. */
    private static <T> T repeated(Supplier<T> command) {
        for (int attempt = 1; ; attempt++) {
            try {
                return command.get();
            } catch (RedisException error) {
                if (attempt == ATTEMPTS) {
                    throw error;
                }
            }
        }
    }

    private static void run(String what, long staleNanos, String[] keys, Commands commands) throws Exception {
        new CountUp(commands, what, staleNanos).run(keys);
    }

    private void run(String[] keys) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < THREADS; number++) {
            int first = number;
            threads.add(new Thread(() -> work(keys, first)));
        }
        threads.forEach(Thread::start);
        while (System.in.read() >= 0) {
            // The caller closes our input when it has seen enough.
        }
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("{\"counts\": {" + counts.entrySet().stream()
                .map(each -> quoted(each.getKey()) + ": " + each.getValue())
                .collect(Collectors.joining(", ")) + "}, \"failures\": ["
                + failures.stream().map(CountUp::quoted).collect(Collectors.joining(", "))
                + "], \"reads\": " + reads + ", \"unknown\": {" + unknown.entrySet().stream()
                .map(each -> quoted(each.getKey()) + ": " + each.getValue())
                .collect(Collectors.joining(", ")) + "}}");
    }

    private static String quoted(String text) {
        return '"' + text.replaceAll("[^ -~]|[\"\\\\]", "?") + '"';
    }

    private void work(String[] keys, int first) {
        Map<String, Deque<Write>> writes = new TreeMap<>();
        Map<String, Last> lasts = new TreeMap<>();
        while (!over) {
            for (int at = first; at < keys.length; at += THREADS) {
                if (what.equals("count")) {
                    count(keys[at]);
                } else if (what.equals("die") && at >= keys.length / 2) {
                    lasts.compute(keys[at], this::add);
                } else {
                    setAndGet(keys[at], writes.computeIfAbsent(keys[at], key -> new ArrayDeque<>()));
                }
            }
        }
    }

    private Last add(String key, Last last) {
        Last before = last == null ? new Last(0, 0) : last;
        try {
            long value = commands.increment().applyAsLong(key);
            long most = before.value() + 1 + before.unknown();
            synchronized (this) {
                counts.merge(key, 1L, Long::sum);
                if (value <= before.value() || value > most) {
                    failures.add(key + " is " + value + " after " + before.value() + ", at most " + most + " is right");
                }
            }
            return new Last(value, 0);
        } catch (RuntimeException error) {
            synchronized (this) {
                unknown.merge(key, 1L, Long::sum);
                if (!isRefusedOrUnknown(error)) {
                    failures.add("INCR " + key + ": " + error + " by " + error.getCause());
                }
            }
            return new Last(before.value(), before.unknown() + 1);
        }
    }

    /** Returns whether the death of an owner may end an increment so: it was not done, or nobody knows. */
    private static boolean isRefusedOrUnknown(RuntimeException error) {
        if (error instanceof RedisCommandExecutionException || error instanceof JedisDataException) {
            return error.getMessage().startsWith("UNCERTAIN ") || error.getMessage().startsWith("CLUSTERDOWN ");
        }
        return error instanceof RedisException
                || error instanceof JedisConnectionException
                || error instanceof JedisClusterOperationException;
    }

    private void count(String key) {
        long value = -1;
        String failure = null;
        try {
            value = commands.increment().applyAsLong(key);
        } catch (RuntimeException error) {
            failure = key + ": " + error;
        }
        synchronized (this) {
            long expected = counts.merge(key, 1L, Long::sum);
            if (failure != null) {
                failures.add(failure);
            } else if (value != expected) {
                failures.add(key + " is " + value + " after " + expected);
                counts.put(key, value);
            }
        }
    }

    private synchronized long next(String key) {
        return counts.getOrDefault(key, 0L) + 1;
    }

    private void setAndGet(String key, Deque<Write> writes) {
        long next = next(key);
        String failure = null;
        try {
            commands.set().accept(key, Long.toString(next));
            writes.add(new Write(System.nanoTime(), next));
            long begin = System.nanoTime();
            String found = commands.get().apply(key);
            long value = found == null ? 0 : Long.parseLong(found);
            long least = least(writes, begin);
            if (value < least || value > next) {
                failure = key + " is " + value + ", between " + least + " and " + next + " is right";
            }
        } catch (RuntimeException error) {
            failure = key + ": " + error + " by " + error.getCause();
        }
        synchronized (this) {
            reads++;
            counts.put(key, next);
            if (failure != null) {
                failures.add(failure);
            }
        }
    }

    /** Returns the last number that was acknowledged so long before the read began. */
    private long least(Deque<Write> writes, long begin) {
        Write least = null;
        while (!writes.isEmpty() && writes.peek().doneNanos() + staleNanos <= begin) {
            least = writes.poll();
        }
        if (least != null) {
            writes.addFirst(least);
        }
        return least == null ? 0 : least.made();
    }
}
