// A producer with franz-go. numbered_producers.py describes its arguments and its output.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type round struct {
	Seconds float64   `json:"seconds"`
	Before  []float64 `json:"before"`
	During  []float64 `json:"during"`
}

type producer struct {
	client               *kgo.Client
	noisy, quiet         string
	noisyBytes           int
	quietBytes           int
	partitions           int
	interval             time.Duration
	noisySent, quietSent int
}

func number(at int) int {
	value, err := strconv.Atoi(os.Args[at])
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func (p *producer) record(topic string, at, size int) *kgo.Record {
	value := make([]byte, size)
	copy(value, fmt.Sprintf("%08d", at))
	return &kgo.Record{Topic: topic, Partition: int32(at % p.partitions), Value: value}
}

func (p *producer) writeQuiet(size int) float64 {
	began := time.Now()
	if err := p.client.ProduceSync(context.Background(), p.record(p.quiet, p.quietSent, size)).FirstErr(); err != nil {
		log.Fatal(err)
	}
	p.quietSent++
	took := time.Since(began).Seconds()
	time.Sleep(p.interval)
	return took
}

func (p *producer) writeNoise(records int, room chan struct{}, acknowledged *atomic.Int64) {
	for at := 0; at < records; at++ {
		room <- struct{}{}
		p.client.Produce(context.Background(), p.record(p.noisy, p.noisySent, p.noisyBytes), func(_ *kgo.Record, err error) {
			if err != nil {
				log.Fatal(err)
			}
			<-room
			acknowledged.Add(1)
		})
		p.noisySent++
	}
}

func main() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ClientID(os.Args[2]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// It sends a refused batch again after its next look-up of metadata: by default 5 s after the last one.
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.ProducerBatchMaxBytes(100_000),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(0),
	)
	if err != nil {
		log.Fatal(err)
	}
	noisyRecords, quietRecords := number(6), number(7)
	p := &producer{
		client: client, noisy: os.Args[3], quiet: os.Args[4], noisyBytes: number(8), quietBytes: number(9),
		partitions: number(10), interval: time.Duration(number(12)) * time.Millisecond,
	}
	rounds := []round{}
	for len(rounds) < number(5) {
		one := round{}
		for len(one.Before) < quietRecords {
			one.Before = append(one.Before, p.writeQuiet(p.quietBytes))
		}
		var acknowledged atomic.Int64
		var noise sync.WaitGroup
		noise.Add(1)
		began := time.Now()
		go func() {
			defer noise.Done()
			p.writeNoise(noisyRecords, make(chan struct{}, number(11)), &acknowledged)
		}()
		for acknowledged.Load() < int64(noisyRecords) {
			one.During = append(one.During, p.writeQuiet(2*p.quietBytes))
		}
		one.Seconds = time.Since(began).Seconds()
		noise.Wait()
		rounds = append(rounds, one)
	}
	result, _ := json.Marshal(rounds)
	fmt.Println(string(result))
}
