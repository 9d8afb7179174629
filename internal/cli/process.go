package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// processAlive looks whether the process that has this PID is still the one
// that started at startTime (field 22 of /proc/PID/stat). A PID alone may be
// somebody else's by now. A zombie is gone: it holds no lock and no socket.
func processAlive(pid int, startTime uint64) (bool, error) {
	if pid <= 0 {
		return false, nil
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at process %d: %w", pid, err)
	}
	// The name is in parentheses and may contain both blanks and parentheses.
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return false, fmt.Errorf("/proc/%d/stat has no name", pid)
	}
	fields := strings.Fields(string(data[end+1:])) // fields[0] is field 3
	if len(fields) < 20 {
		return false, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields)+2)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return false, nil
	}
	started, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return false, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return startTime == 0 || started == startTime, nil
}
