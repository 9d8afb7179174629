package guest

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// testProgram is what runs inside the sessions of the tests.
func testProgram(name string) int {
	var err error
	switch name {
	case "count":
		err = count(os.Args[1], os.Args[2:])
	case "query":
		err = query(os.Args[1:])
	case "raw":
		err = rawKeys()
	case "size":
		err = sizes()
	default:
		err = fmt.Errorf("no program %q", name)
	}
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	return 0
}

// count prints n numbered lines. "slow" waits for a line of input first and
// pauses now and then; "slow" and "stay" wait for a line at the end.
func count(n string, how []string) error {
	lines, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	slow := len(how) > 0 && how[0] == "slow"
	if slow {
		if _, err := in.ReadString('\n'); err != nil {
			return err
		}
	}
	out := bufio.NewWriterSize(os.Stdout, 4096)
	for i := range lines {
		_, _ = fmt.Fprintf(out, "\x1b[3%dmline %d\x1b[0m äöü\n", i%8, i)
		if i%200 == 0 && slow {
			_ = out.Flush()
			<-time.After(time.Millisecond)
		}
	}
	_, _ = fmt.Fprintln(out, "all lines")
	if err := out.Flush(); err != nil {
		return err
	}
	if len(how) > 0 {
		_, err = in.ReadString('\n')
	}
	return err
}

// query asks the terminal and prints what it got in 300 ms, once for each line
// of input. With "early" it asks once by itself before it reads the first line.
func query(args []string) error {
	old, err := term.MakeRaw(0)
	if err != nil {
		return err
	}
	defer term.Restore(0, old) //nolint:errcheck // the program ends
	input := make(chan string, 64)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := os.Stdin.Read(buf)
			if err != nil {
				close(input)
				return
			}
			input <- string(buf[:n])
		}
	}()
	ask := func() {
		fmt.Print("ask\x1b[c\r\n\x1b[c\x1b[6n")
		got := ""
		end := time.After(300 * time.Millisecond)
		for {
			select {
			case s := <-input:
				got += s
			case <-end:
				fmt.Printf("got %q\r\n", got)
				return
			}
		}
	}
	if len(args) > 0 {
		ask()
	}
	fmt.Print("ready\r\n")
	for s := range input {
		for _, r := range s {
			switch r {
			case 'a':
				ask()
			case 'q':
				return nil
			default:
				fmt.Printf("key %q\r\n", r)
			}
		}
	}
	return nil
}

// rawKeys prints each read in its own line.
func rawKeys() error {
	old, err := term.MakeRaw(0)
	if err != nil {
		return err
	}
	defer term.Restore(0, old) //nolint:errcheck // the program ends
	fmt.Print("\x1b[?2004hready\r\n")
	buf := make([]byte, 4096)
	for {
		n, err := os.Stdin.Read(buf)
		if err != nil {
			return err
		}
		fmt.Printf("read %s\r\n", strings.ReplaceAll(strconv.Quote(string(buf[:n])), " ", "_"))
		if n == 1 && buf[0] == 'q' {
			return nil
		}
	}
}

// sizes prints the size of the terminal at each change, until a line comes.
func sizes() error {
	winch := make(chan os.Signal, 16)
	signal.Notify(winch, unix.SIGWINCH)
	line := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		close(line)
	}()
	for {
		ws, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
		if err != nil {
			return err
		}
		fmt.Printf("size %dx%d\n", ws.Col, ws.Row)
		select {
		case <-winch:
		case <-line:
			return nil
		}
	}
}
