// Works on keys through go-redis' cluster client, or rueidis', until its standard input ends, then prints what it did as JSON.
//
// Arguments: what it does, address of one member, how old a read may be in milliseconds, then keys. Each key is
// worked on by one goroutine alone.
//
//	count  INCR with default options: each reply is one more than the reply before.
//	die    with the options for members that die: of the first half of the keys, SET to the next number, then GET
//	       at the owner; of the other half, INCR: each reply is one more than the reply before, and at most as
//	       many more as attempts failed in between of which nobody knows whether they were done.
//	read   SET to the next number, then GET at backups: what is read may be older, but not by more than that time.
//	cache  the same with rueidis, which keeps what it reads (CLIENT TRACKING): twice that time, and several GETs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

type result struct {
	Counts   map[string]int64 `json:"counts"`
	Failures []string         `json:"failures"`
	Hits     int64            `json:"hits"`
	Reads    int64            `json:"reads"`
	Unknown  map[string]int64 `json:"unknown"`
}

type write struct {
	done time.Time
	made int64
}

type worker struct {
	client *redis.ClusterClient
	cached rueidis.Client
	stale  time.Duration
	writes map[string][]write
	lasts  map[string]last
	made   *result
	lock   *sync.Mutex
}

// The last reply, and the attempts of which nobody knew by then whether they were done.
type last struct {
	value   int64
	unknown int64
}

// Counts each attempt at a node: the cluster client sends again what fails.
type attempts struct {
	made *result
	lock *sync.Mutex
}

func (all attempts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (all attempts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (all attempts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		err := next(ctx, command)
		if err != nil && command.Name() == "incr" && !refused(err) {
			all.lock.Lock()
			defer all.lock.Unlock()
			all.made.Unknown[command.Args()[1].(string)]++
		}
		return err
	}
}

// Whether an error says that nothing was done.
func refused(err error) bool {
	for _, code := range []string{"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING"} {
		if strings.HasPrefix(err.Error(), code+" ") {
			return true
		}
	}
	return false
}

// Whether an error is what the death of an owner may do to an increment: not done, or nobody knows.
func refusedOrUnknown(err error) bool {
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, io.EOF) {
		return true
	}
	return strings.HasPrefix(err.Error(), "UNCERTAIN ") || strings.HasPrefix(err.Error(), "CLUSTERDOWN ")
}

const workers = 4

func options(what string, address string) *redis.ClusterOptions {
	made := &redis.ClusterOptions{Addrs: []string{address}}
	if what == "die" {
		made.MaxRedirects = 60
		made.MinRetryBackoff = 100 * time.Millisecond
		made.MaxRetryBackoff = 500 * time.Millisecond
		made.DialTimeout = time.Second
		made.ClusterStateReloadInterval = time.Second
	}
	made.ReadOnly = what == "read"
	return made
}

func main() {
	what, keys := os.Args[1], os.Args[4:]
	stale, _ := strconv.Atoi(os.Args[3])
	client := redis.NewClusterClient(options(what, os.Args[2]))
	defer client.Close()
	var cached rueidis.Client
	if what == "cache" {
		stale *= 2
		made, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Args[2]}})
		if err != nil {
			panic(err)
		}
		defer made.Close()
		cached = made
	}
	made := result{Counts: map[string]int64{}, Failures: []string{}, Unknown: map[string]int64{}}
	var over atomic.Bool
	var lock sync.Mutex
	client.OnNewNode(func(node *redis.Client) { node.AddHook(attempts{&made, &lock}) })
	var group sync.WaitGroup
	for number := 0; number < workers; number++ {
		group.Add(1)
		stale := time.Duration(stale) * time.Millisecond
		one := worker{client, cached, stale, map[string][]write{}, map[string]last{}, &made, &lock}
		go func(number int) {
			defer group.Done()
			for !over.Load() {
				for at := number; at < len(keys); at += workers {
					if what == "count" {
						one.count(keys[at])
					} else if what == "die" && at >= len(keys)/2 {
						one.add(keys[at])
					} else {
						one.setAndGet(keys[at])
					}
				}
			}
		}(number)
	}
	io.Copy(io.Discard, os.Stdin)
	over.Store(true)
	group.Wait()
	json.NewEncoder(os.Stdout).Encode(made)
}

func (one *worker) fail(format string, values ...any) {
	one.made.Failures = append(one.made.Failures, fmt.Sprintf(format, values...))
}

func (one *worker) count(key string) {
	value, err := one.client.Incr(context.Background(), key).Result()
	one.lock.Lock()
	defer one.lock.Unlock()
	one.made.Counts[key]++
	if err != nil {
		one.fail("%s: %v", key, err)
	} else if value != one.made.Counts[key] {
		one.fail("%s is %d after %d", key, value, one.made.Counts[key])
		one.made.Counts[key] = value
	}
}

func (one *worker) add(key string) {
	value, err := one.client.Incr(context.Background(), key).Result()
	one.lock.Lock()
	defer one.lock.Unlock()
	if err != nil {
		if !refusedOrUnknown(err) {
			one.fail("INCR %s: %v", key, err)
		}
		return
	}
	one.made.Counts[key]++
	before, unknown := one.lasts[key], one.made.Unknown[key]
	if most := before.value + 1 + unknown - before.unknown; value <= before.value || value > most {
		one.fail("%s is %d after %d, at most %d is right", key, value, before.value, most)
	}
	one.lasts[key] = last{value, unknown}
}

func (one *worker) set(key string, value int64) error {
	if one.cached == nil {
		return one.client.Set(context.Background(), key, value, 0).Err()
	}
	command := one.cached.B().Set().Key(key).Value(strconv.FormatInt(value, 10)).Build()
	return one.cached.Do(context.Background(), command).Error()
}

// The number, 0 without any, and whether it was kept.
func (one *worker) get(key string) (int64, bool, error) {
	if one.cached == nil {
		value, err := one.client.Get(context.Background(), key).Int64()
		if err == redis.Nil {
			return 0, false, nil
		}
		return value, false, err
	}
	command := one.cached.B().Get().Key(key).Cache()
	reply := one.cached.DoCache(context.Background(), command, time.Hour)
	value, err := reply.AsInt64()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return value, reply.IsCacheHit(), err
}

func (one *worker) setAndGet(key string) {
	one.lock.Lock()
	next := one.made.Counts[key] + 1
	one.lock.Unlock()
	err := one.set(key, next)
	if err != nil {
		one.lock.Lock()
		defer one.lock.Unlock()
		one.fail("SET %s: %v", key, err)
		return
	}
	one.writes[key] = append(one.writes[key], write{time.Now(), next})
	one.getAndCheck(key, next)
	for again := 0; one.cached != nil && again < 3; again++ {
		one.getAndCheck(key, next)
	}
}

func (one *worker) getAndCheck(key string, next int64) {
	begin := time.Now()
	value, hit, getErr := one.get(key)
	one.lock.Lock()
	defer one.lock.Unlock()
	one.made.Counts[key] = next
	one.made.Reads++
	if hit {
		one.made.Hits++
	}
	if least := one.least(key, begin); getErr != nil {
		one.fail("GET %s: %v", key, getErr)
	} else if value < least || value > next {
		one.fail("%s is %d, between %d and %d is right", key, value, least, next)
	}
}

// The last number that was acknowledged so long before the read began.
func (one *worker) least(key string, begin time.Time) int64 {
	least, kept := int64(0), one.writes[key]
	for len(kept) > 0 && !kept[0].done.Add(one.stale).After(begin) {
		least, kept = kept[0].made, kept[1:]
	}
	if least > 0 {
		kept = append([]write{{begin.Add(-one.stale), least}}, kept...)
	}
	one.writes[key] = kept
	return least
}
