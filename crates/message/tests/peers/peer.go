// Reads bodies as servers in Go do. See peer.py for the lines of stdin and stdout.
//
// Run with `go run peer.go unmarshal` or `go run peer.go stream`, as servers read the whole body or
// decode it from the connection.
package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
)

type question struct{ Kind, Place, Hex string }

type byMethod struct {
	Method any `json:"method"`
}

type byName struct {
	Params struct {
		Name any `json:"name"`
	} `json:"params"`
}

type byTokens struct {
	MaxTokens any `json:"max_tokens"`
}

type methodCall struct {
	MethodName *string `xml:"methodName"`
	Params     []struct {
		Value struct {
			Text   string  `xml:",chardata"`
			String *string `xml:"string"`
			Int    *string `xml:"int"`
		} `xml:"value"`
	} `xml:"params>param"`
}

func decode(into any, body []byte) error {
	if os.Args[1] == "stream" {
		return json.NewDecoder(bytes.NewReader(body)).Decode(into)
	}
	return json.Unmarshal(body, into)
}

func readJson(body []byte, place string) any {
	var value any
	var err error
	switch place {
	case "/method":
		var call byMethod
		err = decode(&call, body)
		value = call.Method
	case "/params/name":
		var call byName
		err = decode(&call, body)
		value = call.Params.Name
	case "/max_tokens":
		var call byTokens
		err = decode(&call, body)
		value = call.MaxTokens
	}
	if err != nil {
		return false
	}
	switch value.(type) {
	case string, float64:
		return value
	}
	return nil
}

func readXml(body []byte, place string) any {
	var call methodCall
	if err := xml.NewDecoder(bytes.NewReader(body)).Decode(&call); err != nil && err != io.EOF {
		return false
	}
	if place == "methodName" {
		if call.MethodName == nil {
			return nil
		}
		return *call.MethodName
	}
	if len(call.Params) == 0 {
		return nil
	}
	value := call.Params[0].Value
	if value.String != nil {
		return *value.String
	}
	if value.Int != nil {
		return *value.Int
	}
	return value.Text
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var question question
		if err := json.Unmarshal(lines.Bytes(), &question); err != nil {
			panic(err)
		}
		body, _ := hex.DecodeString(question.Hex)
		var value any
		if question.Kind == "json" {
			value = readJson(body, question.Place)
		} else {
			value = readXml(body, question.Place)
		}
		written, _ := json.Marshal(value)
		fmt.Println(string(written))
	}
}
