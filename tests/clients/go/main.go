// Counts up keys through go-redis' cluster client until its standard input ends, then prints what it did as JSON.
//
// Arguments: address of one member, then keys. Each key is counted up by one goroutine alone, so that each reply
// must be one more than the reply before.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

type result struct {
	Counts   map[string]int64 `json:"counts"`
	Failures []string         `json:"failures"`
}

const workers = 4

func main() {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{os.Args[1]}})
	defer client.Close()
	keys, made := os.Args[2:], result{Counts: map[string]int64{}, Failures: []string{}}
	var over atomic.Bool
	var lock sync.Mutex
	var group sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for !over.Load() {
				for at := worker; at < len(keys); at += workers {
					made.count(client, keys[at], &lock)
				}
			}
		}(worker)
	}
	io.Copy(io.Discard, os.Stdin)
	over.Store(true)
	group.Wait()
	json.NewEncoder(os.Stdout).Encode(made)
}

func (made *result) count(client *redis.ClusterClient, key string, lock *sync.Mutex) {
	value, err := client.Incr(context.Background(), key).Result()
	lock.Lock()
	defer lock.Unlock()
	made.Counts[key]++
	if err != nil {
		made.Failures = append(made.Failures, fmt.Sprintf("%s: %v", key, err))
	} else if value != made.Counts[key] {
		made.Failures = append(made.Failures, fmt.Sprintf("%s is %d after %d", key, value, made.Counts[key]))
		made.Counts[key] = value
	}
}
