package stele.bench;

import com.hazelcast.instance.BuildInfoProvider;
import com.hazelcast.internal.partition.impl.HazelcastPlanner;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import org.infinispan.commons.util.Version;

/**
 * Answers one line of JSON to each line of standard input and ends with it:
 * versions | prepare SYSTEM MEMBERS PARTITIONS REPLICAS EVENT | plan SYSTEM COUNT | rows SYSTEM.
 */
public final class Main {
    private static final Map<String, Planner> PLANNERS =
        Map.of("hazelcast", new HazelcastPlanner(), "infinispan", new InfinispanPlanner());

    private Main() { }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what libraries print must not be taken for an answer
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ")));
            out.flush();
        }
    }

    private static String answer(String[] words) {
        try {
            return switch (words[0]) {
                case "versions" -> versions();
                case "prepare" -> prepare(words);
                case "plan" -> plan(PLANNERS.get(words[1]), Integer.parseInt(words[2]));
                case "rows" -> rows(PLANNERS.get(words[1]));
                default -> throw new IllegalArgumentException("unknown request");
            };
        } catch (Exception error) {
            error.printStackTrace();
            return "{\"error\":\"" + error.toString().replaceAll("[^ -!#-\\[\\]-~]", "?") + "\"}";
        }
    }

    private static String versions() {
        return "{\"java\":\"" + System.getProperty("java.version") + "\",\"hazelcast\":\""
            + BuildInfoProvider.getBuildInfo().getVersion() + "\",\"infinispan\":\"" + Version.getVersion() + "\"}";
    }

    private static String prepare(String[] words) throws Exception {
        PLANNERS.get(words[1]).prepare(
            Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4]), words[5]);
        System.gc(); // what was prepared is not collected inside a measurement
        return "{}";
    }

    private static String plan(Planner planner, int count) throws Exception {
        long[][] nanos = new long[count][];
        for (int i = 0; i < count; i++) {
            nanos[i] = planner.plan();
        }
        return "{\"nanos\":" + Arrays.deepToString(nanos) + "}";
    }

    private static String rows(Planner planner) {
        return "{\"current\":" + Arrays.deepToString(planner.current())
            + ",\"target\":" + Arrays.deepToString(planner.target()) + "}";
    }
}
