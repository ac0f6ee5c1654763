"""RocksDB options of a member's database, each with its reason."""

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options

LOG = "log"
DATA = "data"
DATA_BUFFER_BYTES = 32 * 1024 * 1024
LOG_BUFFER_BYTES = 16 * 1024 * 1024
BLOCK_CACHE_BYTES = 64 * 1024 * 1024
WAL_BYTES_MAX = 512 * 1024 * 1024
INFO_LOG_BYTES = 4 * 1024 * 1024
INFO_LOG_FILES = 3
BLOOM_BITS = 10
FILES_UNTIL_COMPACTION = 8
"""Files of level 0 that trigger a compaction.

8 full files of `data` are as large as the next level's limit (256 MiB). Each snapshot for a copy adds a small
file, and a compaction rewrites the level below as well: with the default of 4, members wrote several times
what they copied while others joined.
"""
LOG_FILES_UNTIL_COMPACTION = 32
LOG_BYTES_UNTIL_COMPACTION = 128 * 1024 * 1024
"""Files of level 0 of the log that trigger a compaction, and their bytes; 8 full files have as many.

Each snapshot for a copy adds a small file here, too, and a compaction rewrites all that members keep of their
logs. The log is read from one place on, so that many files cost little.
"""
LOG_FILES_SLOW, LOG_FILES_MAX = 48, 64
"""Files of level 0 of the log at which writes are slowed down, and wait."""
SYNC_BYTES = 1024 * 1024
"""Step in which flushes and compactions hand pages to the disk; a sync of the log waits for all unwritten."""


def database_options(wals: str | None) -> Options:
    """Return the options of the whole database. `wals` is the directory of the write-ahead log."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # The default mode silently drops everything after a single flipped bit.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(SYNC_BYTES)
    options.set_keep_log_file_num(INFO_LOG_FILES)
    options.set_max_log_file_size(INFO_LOG_BYTES)
    if wals is not None:
        options.set_wal_dir(wals)
    return options


def data_options() -> Options:
    """Return the options of the entries' family: compressed, with filters, as every write looks up the
    old value."""
    options = Options(raw_mode=True)
    options.set_write_buffer_size(DATA_BUFFER_BYTES)
    options.set_level_zero_file_num_compaction_trigger(FILES_UNTIL_COMPACTION)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(BLOOM_BITS, False)
    options.set_block_based_table_factory(table)
    return options


def log_options() -> Options:
    """Return the options of the log's family: written once, rarely read, deleted from the front."""
    options = Options(raw_mode=True)
    options.set_write_buffer_size(LOG_BUFFER_BYTES)
    options.set_level_zero_file_num_compaction_trigger(LOG_FILES_UNTIL_COMPACTION)
    options.set_max_bytes_for_level_base(LOG_BYTES_UNTIL_COMPACTION)
    options.set_level_zero_slowdown_writes_trigger(LOG_FILES_SLOW)
    options.set_level_zero_stop_writes_trigger(LOG_FILES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    return options


def families() -> dict[str, Options]:
    """Return the options by family name, as rocksdict expects them."""
    return {LOG: log_options(), DATA: data_options()}
