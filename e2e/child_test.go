package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	xterm "golang.org/x/term"
)

// childArg makes the test binary act as a program in a session.
const childArg = "berth-e2e-child"

// child is the program. It fails loudly on its own terminal.
func child(args []string) {
	switch args[0] {
	case "lines": // lines N FILE: numbered lines to the terminal and, byte for byte, to a file
		n, err := strconv.Atoi(args[1])
		if err != nil {
			panic(err)
		}
		lines(n, args[2])
	case "queries": // queries FILE GO: ask the terminal, keep every byte that it answers
		queries(args[1], args[2])
	case "fill": // fill N: N million bytes of lines, as fast as they are taken
		n, err := strconv.Atoi(args[1])
		if err != nil {
			panic(err)
		}
		fill(n)
	default:
		panic("unknown child " + args[0])
	}
}

// lines writes "line 1\r\n"… to the terminal in raw form and keeps a copy, so
// that what the session kept can be compared with what the program wrote.
func lines(n int, file string) {
	f, err := os.Create(file)
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriterSize(os.Stdout, 4096)
	both := bufio.NewWriterSize(f, 64<<10)
	for i := 1; i <= n; i++ {
		line := "line " + strconv.Itoa(i) + " of the run"
		_, _ = out.WriteString(line + "\n") // a buffer keeps its error for Flush
		_, _ = both.WriteString(line + "\r\n")
	}
	if err := out.Flush(); err != nil {
		panic(err)
	}
	if err := both.Flush(); err != nil {
		panic(err)
	}
	if err := os.WriteFile(file+".done", nil, 0o600); err != nil {
		panic(err)
	}
	<-time.After(time.Hour)
}

// fill writes n MB and then the text FILLED.
func fill(n int) {
	block := []byte(strings.Repeat(strings.Repeat("0123456789", 7)+"\n", 1<<13))
	for left := n * 1_000_000; left > 0; left -= len(block) {
		if _, err := os.Stdout.Write(block[:min(left, len(block))]); err != nil {
			panic(err)
		}
	}
	fmt.Println("\nFILLED")
	<-time.After(time.Hour)
}

// asked is what a program may ask of its terminal, each with how its answer begins.
var asked = []struct{ name, query, answer string }{
	{"DA1", "\x1b[c", "\x1b[?"},
	{"DA2", "\x1b[>c", "\x1b[>"},
	{"DSR", "\x1b[5n", "\x1b[0n"},
	{"CPR", "\x1b[3;5H\x1b[6n", "\x1b[3;5R"},
	{"XTVERSION", "\x1b[>q", "\x1bP>|"},
	{"OSC 10", "\x1b]10;?\x1b\\", "\x1b]10;rgb:"},
	{"OSC 11", "\x1b]11;?\x1b\\", "\x1b]11;rgb:"},
	{"DECRQM", "\x1b[?2004$p", "\x1b[?2004;"},
	{"kitty keyboard", "\x1b[?u", "\x1b[?0u"},
	{"OSC 7501", "\x1b]7501;?\x1b\\", "\x1b]7501;"},
}

// queries asks each in turn, and after the file GO is there, once more all of
// them. What came back for each is written to FILE as JSON; then every further
// byte of input is appended to FILE.more.
func queries(file, goFile string) {
	if _, err := xterm.MakeRaw(0); err != nil {
		panic(err)
	}
	input := make(chan []byte, 64)
	go func() {
		for {
			buf := make([]byte, 4096)
			n, err := os.Stdin.Read(buf)
			if err != nil {
				close(input)
				return
			}
			input <- buf[:n]
		}
	}()
	say("ready\r\n")
	for {
		if _, err := os.Stat(goFile); err == nil {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	got := map[string]string{}
	for _, q := range asked {
		say(q.query)
		var answer []byte
		wait := time.After(3 * time.Second) // for the first byte
	collect:
		for {
			select {
			case b := <-input:
				answer = append(answer, b...)
				wait = time.After(100 * time.Millisecond) // a second answer would come within this
			case <-wait:
				break collect
			}
		}
		got[q.name] = string(bytes.Clone(answer))
	}
	data, err := json.Marshal(got)
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(file+".tmp", data, 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(file+".tmp", file); err != nil {
		panic(err)
	}
	more, err := os.Create(file + ".more")
	if err != nil {
		panic(err)
	}
	for b := range input {
		if _, err := more.Write(b); err != nil {
			panic(err)
		}
	}
}

func say(text string) {
	if _, err := os.Stdout.WriteString(text); err != nil {
		panic(err)
	}
}
