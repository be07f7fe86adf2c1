// Asks an HTTP service for everything in tests/it/real_clients.rs with net/http:
//
//	go run drive.go URL ONE_AT_A_TIME KEPT DIRECT
//
// Prints one line of JSON for each request, as drive.py does.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

type reply struct {
	status int
	length string
	body   []byte
}

type observation struct {
	Name   string `json:"name"`
	Ms     int64  `json:"ms"`
	Status int    `json:"status,omitempty"`
	Body   string `json:"body"`
	Error  string `json:"error,omitempty"`
}

var client = &http.Client{
	Timeout:       5 * time.Second,
	Transport:     &http.Transport{ExpectContinueTimeout: 3 * time.Second, MaxIdleConnsPerHost: 4},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func pattern(length int) []byte {
	body := make([]byte, length)
	for i := range body {
		body[i] = byte(i % 251)
	}
	return body
}

func summary(body []byte) string {
	if len(body) <= 200 {
		return string(body)
	}
	if bytes.Equal(body, pattern(len(body))) {
		return fmt.Sprintf("%d bytes as sent", len(body))
	}
	return fmt.Sprintf("%d bytes that are wrong", len(body))
}

func ask(method, url string, body io.Reader, expect bool) (reply, error) {
	request, err := http.NewRequest(method, url, body)
	if err != nil {
		return reply{}, err
	}
	if expect {
		request.Header.Set("Expect", "100-continue")
	}
	came, err := client.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer came.Body.Close()
	read, err := io.ReadAll(came.Body)
	return reply{came.StatusCode, came.Header.Get("Content-Length"), read}, err
}

func observe(name string, asking func() (int, string, error)) {
	began := time.Now()
	status, body, err := asking()
	seen := observation{Name: name, Ms: time.Since(began).Milliseconds(), Status: status, Body: body}
	if err != nil {
		seen = observation{Name: name, Ms: seen.Ms, Error: err.Error()}
	}
	line, _ := json.Marshal(seen)
	fmt.Println(string(line))
}

func bodyOf(name, method, url string, body io.Reader, expect bool) {
	observe(name, func() (int, string, error) {
		came, err := ask(method, url, body, expect)
		return came.status, summary(came.body), err
	})
}

func count(asked []reply) (int, string, error) {
	right := 0
	for _, it := range asked {
		if it.status == 200 && string(it.body) == "small" {
			right++
		}
	}
	return 200, fmt.Sprintf("%d of %d", right, len(asked)), nil
}

func main() {
	url, one, kept, direct := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	upload := pattern(300000)
	bodyOf("small", "GET", url+"/small", nil, false)
	bodyOf("large", "GET", url+"/large", nil, false)
	bodyOf("echo", "POST", url+"/echo", bytes.NewReader([]byte(`{"name":"box","size":3}`)), false)
	bodyOf("upload_length", "POST", url+"/upload", bytes.NewReader(upload), false)
	bodyOf("upload_chunks", "POST", url+"/upload", io.MultiReader(bytes.NewReader(upload)), false)
	bodyOf("upload_expect", "POST", url+"/upload", bytes.NewReader(upload), true)
	bodyOf("refused_expect", "POST", url+"/refused", bytes.NewReader(upload), true)
	observe("head", func() (int, string, error) {
		came, err := ask("HEAD", url+"/large", nil, false)
		return came.status, fmt.Sprintf("%d bytes of %s", len(came.body), came.length), err
	})
	for _, name := range []string{"none", "chunked", "closed"} {
		bodyOf(name, "GET", url+"/"+name, nil, false)
	}
	for _, status := range []int{302, 404, 500, 503} {
		bodyOf(fmt.Sprintf("status_%d", status), "GET", fmt.Sprintf("%s/status/%d", url, status), nil, false)
	}
	observe("waiting", func() (int, string, error) {
		asked := make([]reply, 3)
		var all sync.WaitGroup
		for i := range asked {
			all.Add(1)
			go func(i int) {
				defer all.Done()
				asked[i], _ = ask("GET", one+"/slow", nil, false)
			}(i)
		}
		all.Wait()
		return count(asked)
	})
	for i := 0; i < 5; i++ {
		bodyOf("early", "POST", url+"/early", bytes.NewReader(pattern(20000000)), false)
	}
	for i := 0; i < 5; i++ {
		bodyOf("early_direct", "POST", direct+"/early", bytes.NewReader(pattern(20000000)), false)
	}
	for i := 0; i < 3; i++ {
		bodyOf("early_chunks", "POST", url+"/early", io.MultiReader(bytes.NewReader(pattern(20000000))), false)
	}
	observe("kept", func() (int, string, error) {
		var asked []reply
		for i := 0; i < 20; i++ {
			came, err := ask("GET", kept+"/small", nil, false)
			if err != nil {
				return 0, "", err
			}
			asked = append(asked, came)
		}
		return count(asked)
	})
}
