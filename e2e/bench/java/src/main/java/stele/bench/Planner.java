package stele.bench;

/** One system's planner: a case is prepared once and planned any number of times, always from the same table. */
public interface Planner {
    /** The system's own balanced table of `members` members, and the event (join, leave, crash) that it has to plan for. */
    void prepare(int members, int partitions, int replicas, String event) throws Exception;

    /** Plans once; what a Stopwatch says of its two parts. */
    long[] plan() throws Exception;

    /** Member numbers of the rows before planning, at most `replicas` each, -1 for nobody. */
    int[][] current();

    /** The same of the rows that the last plan leads to. */
    int[][] target();
}
