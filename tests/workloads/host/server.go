// A server with its clients, for so many seconds: the network, JSON, maps, the garbage collector, many goroutines.
// Usage: server SECONDS
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strconv"
	"time"
)

type node struct {
	Name     string
	Children []node
}

func tree(depth int) node {
	n := node{Name: "node-" + strconv.Itoa(depth)}
	for i := 0; depth > 0 && i < 4; i++ {
		n.Children = append(n.Children, tree(depth-1))
	}
	return n
}

func answer(writer http.ResponseWriter, request *http.Request) {
	text, _ := json.Marshal(tree(4))
	packed := gzip.NewWriter(writer)
	packed.Write(text)
	packed.Close()
}

func ask(url string, end time.Time) {
	for time.Now().Before(end) {
		response, err := http.Get(url)
		if err != nil {
			continue
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		var n node
		json.NewDecoder(bytes.NewReader(text)).Decode(&n)
		words := bytes.Split(text, []byte(","))
		sort.Slice(words, func(i, j int) bool { return bytes.Compare(words[i], words[j]) < 0 })
		sha256.Sum256(text)
		time.Sleep(2 * time.Millisecond)
	}
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[1])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go http.Serve(listener, http.HandlerFunc(answer))
	done := make(chan bool)
	for i := 0; i < 4; i++ {
		go func() {
			ask("http://"+listener.Addr().String()+"/", end)
			done <- true
		}()
	}
	for i := 0; i < 4; i++ {
		<-done
	}
}
