package daemon

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"berth"
)

// listenTCP listens for browsers and SDKs. An address that is taken does not
// stop the daemon: it runs on without that door and says so in its status.
func listenTCP(ctx context.Context, address string) (net.Listener, *berth.Problem) {
	if address == "" {
		return nil, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err == nil {
		return l, nil
	}
	e := berth.AsError(berth.Errorf(berth.CodeListenerTaken, "api.listen %s: %w", address, err))
	if errors.Is(err, syscall.EADDRINUSE) {
		e.Detail = fmt.Sprintf("api.listen %s is taken by %s", address, tcpHolder(address))
	}
	return nil, &berth.Problem{Code: e.Code, Detail: e.Detail, Hint: e.Hint}
}

// tokenBytes makes a token that cannot be guessed: 256 bits.
const tokenBytes = 32

// apiToken gives the hash of the TCP listener's token. The first time it makes
// the token and shows it once, through show; only its hash is kept.
func apiToken(paths berth.Paths, show func(token string)) (hash [sha256.Size]byte, err error) {
	data, err := berth.ReadFile(paths.APIToken(), 4096)
	if err == nil {
		n, err := hex.Decode(hash[:], []byte(strings.TrimSpace(string(data[:min(len(data), 2*sha256.Size)]))))
		if err != nil || n != sha256.Size {
			return hash, berth.Errorf(berth.CodeRecordUnreadable, "%s does not hold a SHA-256", paths.APIToken()).
				WithHint("remove it and start again: a new token is made")
		}
		return hash, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return hash, err
	}
	var b [tokenBytes]byte
	if _, err := rand.Read(b[:]); err != nil {
		return hash, fmt.Errorf("make a token: %w", err)
	}
	token := base64.RawURLEncoding.EncodeToString(b[:])
	hash = sha256.Sum256([]byte(token))
	if err := berth.WriteFile(paths.APIToken(), []byte(hex.EncodeToString(hash[:])+"\n"), 0o600); err != nil {
		return hash, err
	}
	show(token)
	return hash, nil
}
