package daemon

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tcpHolder names the process that listens on a loopback address, as far as
// /proc shows it to this user: the socket's inode in /proc/net/tcp, and whose
// descriptor has it.
func tcpHolder(address string) string {
	const nobody = "another program"
	_, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nobody
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nobody
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		inode := listeningInode(bufio.NewScanner(f), uint16(port))
		_ = f.Close() // it was only read
		if inode == "" {
			continue
		}
		if pid := ownerOfSocket(inode); pid != "" {
			comm, err := os.ReadFile("/proc/" + pid + "/comm")
			if err != nil {
				return "process " + pid
			}
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), pid)
		}
	}
	return nobody
}

// listeningInode finds the inode of a listening socket in a table of
// /proc/net/tcp: local address and port in column 1, state (0A = LISTEN) in
// column 3, inode in column 9.
func listeningInode(lines *bufio.Scanner, port uint16) string {
	suffix := fmt.Sprintf(":%04X", port)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], suffix) {
			return f[9]
		}
	}
	return ""
}

func ownerOfSocket(inode string) string {
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == "socket:["+inode+"]" {
			return strings.Split(fd, "/")[2]
		}
	}
	return ""
}
