package stele;

import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.ToLongFunction;
import java.util.stream.Collectors;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;

/**
 * Counts up keys through a cluster client until its standard input ends, then prints what it did as JSON.
 *
 * <p>Arguments: jedis or lettuce, host and port of one member, then keys. Each key is counted up by one thread
 * alone, so that each reply must be one more than the reply before.
 */
public final class CountUp {
    private static final int THREADS = 4;

    private final ToLongFunction<String> increment;
    private final Map<String, Long> counts = new TreeMap<>();
    private final List<String> failures = new ArrayList<>();
    private volatile boolean over;

    private CountUp(ToLongFunction<String> increment) {
        this.increment = increment;
    }

    public static void main(String[] args) throws Exception {
        String host = args[1];
        int port = Integer.parseInt(args[2]);
        String[] keys = java.util.Arrays.copyOfRange(args, 3, args.length);
        if (args[0].equals("jedis")) {
            try (JedisCluster client = new JedisCluster(new HostAndPort(host, port))) {
                new CountUp(client::incr).run(keys);
            }
            return;
        }
        RedisClusterClient client = RedisClusterClient.create(RedisURI.create(host, port));
        // Lettuce follows MOVED by default, and reads the map again only when it is told to.
        client.setOptions(ClusterClientOptions.builder()
                .topologyRefreshOptions(
                        ClusterTopologyRefreshOptions.builder().enableAllAdaptiveRefreshTriggers().build())
                .build());
        try (var connection = client.connect()) {
            new CountUp(connection.sync()::incr).run(keys);
        } finally {
            client.shutdown();
        }
    }

    private void run(String[] keys) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < THREADS; number++) {
            int first = number;
            threads.add(new Thread(() -> countUp(keys, first)));
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
                + failures.stream().map(CountUp::quoted).collect(Collectors.joining(", ")) + "]}");
    }

    private static String quoted(String text) {
        return '"' + text.replaceAll("[^ -~]|[\"\\\\]", "?") + '"';
    }

    private void countUp(String[] keys, int first) {
        while (!over) {
            for (int at = first; at < keys.length; at += THREADS) {
                count(keys[at]);
            }
        }
    }

    private void count(String key) {
        long value = -1;
        String failure = null;
        try {
            value = increment.applyAsLong(key);
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
}
