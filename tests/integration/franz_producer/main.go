// A producer with franz-go, for test_noisy_topics.py. See `numbered_producers.py` for what it does.
//
//	franz_producer BOOTSTRAP CLIENT_ID NOISY QUIET NOISY_RECORDS QUIET_RECORDS RECORD_BYTES PARTITIONS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var size, partitions int

func number(at int) int {
	value, err := strconv.Atoi(os.Args[at])
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func numbered(topic string, at int) *kgo.Record {
	value := make([]byte, size)
	copy(value, fmt.Sprintf("%08d", at))
	return &kgo.Record{Topic: topic, Partition: int32(at % partitions), Value: value}
}

func oneByOne(client *kgo.Client, topic string, first, count int) []float64 {
	latencies := []float64{}
	for at := first; at < first+count; at++ {
		began := time.Now()
		if err := client.ProduceSync(context.Background(), numbered(topic, at)).FirstErr(); err != nil {
			log.Fatal(err)
		}
		latencies = append(latencies, time.Since(began).Seconds())
	}
	return latencies
}

func main() {
	noisy, quiet, noisyRecords, quietRecords := os.Args[3], os.Args[4], number(5), number(6)
	size, partitions = number(7), number(8)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ClientID(os.Args[2]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// It sends a refused batch again after its next look-up of metadata: by default 5 s after the last one.
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.ProducerBatchMaxBytes(100_000),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		log.Fatal(err)
	}
	before := oneByOne(client, quiet, 0, quietRecords)
	var acknowledged, endAt atomic.Int64
	began := time.Now()
	for at := 0; at < noisyRecords; at++ {
		client.Produce(context.Background(), numbered(noisy, at), func(_ *kgo.Record, err error) {
			if err != nil {
				log.Fatal(err)
			}
			if acknowledged.Add(1) == int64(noisyRecords) {
				endAt.Store(time.Now().UnixNano())
			}
		})
	}
	during := oneByOne(client, quiet, quietRecords, quietRecords)
	if err := client.Flush(context.Background()); err != nil {
		log.Fatal(err)
	}
	seconds := float64(endAt.Load()-began.UnixNano()) / 1e9
	result, _ := json.Marshal(map[string]any{"seconds": seconds, "before": before, "during": during})
	fmt.Println(string(result))
}
