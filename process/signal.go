package process

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth"
)

// ParseSignal reads "INT", "SIGINT", "sigint" or "2". Zero is no signal: it
// would only ask whether somebody is there.
func ParseSignal(text string) (unix.Signal, error) {
	name := strings.ToUpper(text)
	if n, err := strconv.Atoi(name); err == nil {
		if n < 1 || n > maxSignal {
			return 0, errSignal(text)
		}
		return unix.Signal(n), nil
	}
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, errSignal(text)
}

// maxSignal is the last real-time signal of Linux.
const maxSignal = 64

func errSignal(text string) error {
	return berth.Errorf(berth.CodeInvalidArgument, "%q is not a signal", text).
		WithHint("write it like INT, SIGINT or 2")
}

// SignalName gives "SIGINT", or "SIG34" where a signal has no name of its own.
func SignalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return "SIG" + strconv.Itoa(int(sig))
}
