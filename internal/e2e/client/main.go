// Client is an ordinary Go HTTP client, run inside sandboxes by the tests: it
// fetches a URL with net/http's defaults and prints the answer. With -websocket
// it opens a WebSocket and prints a line for each message and for its end.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	var err error
	if len(os.Args) > 2 && os.Args[1] == "-websocket" {
		err = listen(os.Args[2])
	} else {
		err = get(os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func get(url string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// listen prints messages of less than 126 bytes, and "close" and the status when a
// Close frame comes (RFC 6455).
func listen(url string) error {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	for k, v := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
	} {
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("no WebSocket: %s", resp.Status)
	}
	in := bufio.NewReader(resp.Body)
	for {
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		payload := make([]byte, head[1]&0x7f)
		if _, err := io.ReadFull(in, payload); err != nil {
			return err
		}
		if head[0]&0x0f == 8 {
			fmt.Println("close", binary.BigEndian.Uint16(payload))
			return nil
		}
		fmt.Println(string(payload))
	}
}
