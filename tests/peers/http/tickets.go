// Asks an HTTP service with a short time-out, many calls at once, with Go's client, and follows Retry-After:
//
//	tickets PORT CALLS TIMEOUT
//
// Prints one line of JSON as tickets.py does.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

func ask(client *http.Client, url string) string {
	for times := 0; times < 50; times++ {
		reply, err := client.Get(url)
		if err != nil {
			return "error"
		}
		io.Copy(io.Discard, reply.Body)
		reply.Body.Close()
		if reply.StatusCode == http.StatusOK {
			return "answered"
		}
		seconds, _ := strconv.Atoi(reply.Header.Get("Retry-After"))
		time.Sleep(time.Duration(seconds) * time.Second)
	}
	return "refused"
}

func main() {
	calls, _ := strconv.Atoi(os.Args[2])
	seconds, _ := strconv.Atoi(os.Args[3])
	client := &http.Client{Timeout: time.Duration(seconds) * time.Second}
	ends := make(chan string)
	for number := 0; number < calls; number++ {
		url := fmt.Sprintf("http://127.0.0.1:%s/call/%d", os.Args[1], number)
		go func() { ends <- ask(client, url) }()
	}
	counts := map[string]int{}
	for number := 0; number < calls; number++ {
		counts[<-ends]++
	}
	json.NewEncoder(os.Stdout).Encode(counts)
}
