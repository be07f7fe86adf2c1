// Asks for one answer after the other with net/http of Go, as wait.py does:
//
//	wait METHOD=URL...
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func ask(method, url string, hides bool) map[string]any {
	var body io.Reader
	if method == "POST" {
		body = strings.NewReader(`{"name":"box"}`)
	}
	request, err := http.NewRequest(method, url, body)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	if hides {
		request.Header.Set("User-Agent", "any")
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(request)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	defer reply.Body.Close()
	read, err := io.ReadAll(reply.Body)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return map[string]any{"status": reply.StatusCode, "body": string(read)}
}

func main() {
	for _, each := range os.Args[1:] {
		method, url, _ := strings.Cut(each, "=")
		line, err := json.Marshal(ask(strings.TrimSuffix(method, "!"), url, strings.HasSuffix(method, "!")))
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
	}
}
