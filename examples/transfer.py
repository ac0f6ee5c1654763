"""Move an amount between two accounts, whatever partitions they are in: both change, or none does.

    pip install redis
    python transfer.py 127.0.0.1:6379 alice bob 20

Of the answers, TRYAGAIN says that nothing was done. UNCERTAIN, or a connection that ends, says that all of it
may be done, or nothing: so each transfer has a key of its own, which is written by the same transaction.
"""

import random
import sys
import time
import uuid

import redis

ATTEMPTS = 100


def transfer(client: redis.Redis, source: str, target: str, amount: int) -> bool:
    """Move the amount; return False when the source has less. Raises redis.RedisError after ATTEMPTS."""
    done = f"transfer:{uuid.uuid4()}"
    attempt = 0
    while True:
        attempt += 1
        try:
            with client.pipeline() as pipe:
                pipe.watch(source, done)
                if pipe.exists(done):
                    return True
                if int(pipe.get(source) or 0) < amount:
                    return False
                pipe.multi()
                pipe.decrby(source, amount).incrby(target, amount).set(done, amount, ex=3600)
                pipe.execute()
                return True
        except redis.RedisError as error:
            if attempt == ATTEMPTS or not may_repeat(error):
                raise
            time.sleep(0.05 * random.random())


def may_repeat(error: redis.RedisError) -> bool:
    """Return whether to look again: another one changed the source, or nobody knows what was done."""
    again = (redis.WatchError, redis.ConnectionError, redis.TimeoutError, redis.exceptions.TryAgainError)
    return isinstance(error, again) or str(error).startswith("UNCERTAIN")


def main() -> int:
    """0: moved; 1: the source has less."""
    address, source, target, amount = sys.argv[1:]
    host, _, port = address.rpartition(":")
    with redis.Redis(host=host, port=int(port), db="accounts", decode_responses=True) as client:
        moved = transfer(client, source, target, int(amount))
        left = client.mget(source, target)
    print("moved" if moved else "not enough", *left)
    return 0 if moved else 1


if __name__ == "__main__":
    sys.exit(main())
