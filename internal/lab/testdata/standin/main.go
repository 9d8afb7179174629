// standin is one static program that stands in for what a machine with NVIDIA
// cards and real engines would have. What it is, its name says.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cards is where a container finds the cards that it was given: one file each,
// named by the UUID.
const cards = "/run/nvidia-lab/gpus"

func main() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case "nvidia-smi":
		smi(os.Args[1:])
	case "nvidia-container-runtime-hook":
		err = hook()
	case "nvidia-container-runtime":
		err = runtime(os.Args[1:])
	case "probe":
		err = probe(os.Args[1:])
	default:
		err = engine()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func smi(args []string) {
	entries, _ := os.ReadDir(cards)
	if len(entries) == 0 {
		fmt.Println("No devices were found")
		os.Exit(6) // as the real one does
	}
	for i, e := range entries {
		if slices.Contains(args, "-L") {
			fmt.Printf("GPU %d: NVIDIA Lab GPU (UUID: %s)\n", i, e.Name())
		} else {
			fmt.Println(e.Name())
		}
	}
}

// bundle is the part of an OCI runtime configuration that the hook reads.
type bundle struct {
	Root    struct{ Path string }
	Process struct{ Env []string }
}

// hook makes the cards that the container's environment asks for visible in its
// root file system.
func hook() error {
	var state struct{ Bundle string }
	if err := json.NewDecoder(os.Stdin).Decode(&state); err != nil {
		return fmt.Errorf("hook: read the state: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(state.Bundle, "config.json"))
	if err != nil {
		return err
	}
	var c bundle
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	root := c.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(state.Bundle, root)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	known, err := os.ReadDir(filepath.Join(filepath.Dir(self), "../gpus"))
	if err != nil {
		return err
	}
	for _, id := range asked(c.Process.Env) {
		if !slices.ContainsFunc(known, func(e os.DirEntry) bool { return e.Name() == id }) {
			return fmt.Errorf("nvidia-container-cli: device error: %s: unknown device", id)
		}
		if err := os.MkdirAll(filepath.Join(root, cards), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, cards, id), nil, 0o444); err != nil {
			return err
		}
	}
	return nil
}

func asked(env []string) []string {
	for _, v := range env {
		if ids, ok := strings.CutPrefix(v, "NVIDIA_VISIBLE_DEVICES="); ok && ids != "" && ids != "void" && ids != "none" {
			return strings.Split(ids, ",")
		}
	}
	return nil
}

// runtime is runc with the hook put into each bundle that is created.
func runtime(args []string) error {
	if i := slices.Index(args, "--bundle"); i >= 0 && i+1 < len(args) && slices.Contains(args, "create") {
		path := filepath.Join(args[i+1], "config.json")
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var c map[string]any
		if err := json.Unmarshal(b, &c); err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		hooks, _ := c["hooks"].(map[string]any)
		if hooks == nil {
			hooks = map[string]any{}
		}
		pre, _ := hooks["prestart"].([]any)
		name := "nvidia-container-runtime-hook"
		hooks["prestart"] = append(pre, map[string]any{
			"path": filepath.Join(filepath.Dir(self), name), "args": []string{name, "prestart"}})
		c["hooks"] = hooks
		if b, err = json.Marshal(c); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
}

// probe does what a test asks of a container.
func probe(args []string) error {
	if len(args) == 0 {
		return report()
	}
	switch args[0] {
	case "exit":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		n, _ := strconv.Atoi(args[1])
		os.Exit(n)
	case "sleep":
		fmt.Println("asleep")
		time.Sleep(time.Hour)
	case "stubborn": // hears no TERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("stubborn")
		time.Sleep(time.Hour)
	case "flood":
		n, _ := strconv.Atoi(args[1])
		line := strings.Repeat("x", 1023) + "\n"
		for range n / len(line) {
			fmt.Print(line)
		}
	default:
		return fmt.Errorf("probe: %q is not known", args[0])
	}
	return nil
}

// Report is what a container sees of itself.
type Report struct {
	UID, GID   int
	CapEff     string
	NoNewPrivs bool
	RootWrites bool
	Interfaces []string
	PidsMax    string
	Env        []string
	PID1       string
	ShmBytes   uint64
	Args       []string
}

func report() error {
	r := Report{UID: os.Getuid(), GID: os.Getgid(), Env: os.Environ(), Args: os.Args}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		k, v, _ := strings.Cut(line, ":")
		switch v = strings.TrimSpace(v); k {
		case "CapEff":
			r.CapEff = v
		case "NoNewPrivs":
			r.NoNewPrivs = v == "1"
		}
	}
	r.RootWrites = os.WriteFile("/written", nil, 0o600) == nil
	ifs, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range ifs {
		r.Interfaces = append(r.Interfaces, i.Name)
	}
	for _, path := range []string{"/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max"} {
		if b, err := os.ReadFile(path); err == nil {
			r.PidsMax = strings.TrimSpace(string(b))
		}
	}
	if b, err := os.ReadFile("/proc/1/comm"); err == nil {
		r.PID1 = strings.TrimSpace(string(b))
	}
	var fs syscall.Statfs_t
	if syscall.Statfs("/dev/shm", &fs) == nil {
		r.ShmBytes = fs.Blocks * uint64(fs.Bsize)
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func ms(name string) time.Duration {
	n, _ := strconv.Atoi(os.Getenv(name))
	return time.Duration(n) * time.Millisecond
}

// engine is a small server of the OpenAI API that says w0 w1 … wN. Its
// environment sets how it behaves: LAB_PORT (8000), LAB_START_MS before it is
// healthy, LAB_TOKEN_MS between tokens, LAB_WORDS (20), LAB_CRASH_MS after which
// it ends with LAB_CRASH_CODE and says LAB_CRASH_TEXT, LAB_MODEL.
func engine() error {
	began := time.Now()
	env := func(name, def string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return def
	}
	if os.Getenv("LAB_CRASH_MS") != "" {
		go func() {
			time.Sleep(ms("LAB_CRASH_MS"))
			fmt.Fprintln(os.Stderr, env("LAB_CRASH_TEXT", "crashed as it was told to"))
			code, _ := strconv.Atoi(env("LAB_CRASH_CODE", "1"))
			os.Exit(code)
		}()
	}
	words, _ := strconv.Atoi(env("LAB_WORDS", "20"))
	model := env("LAB_MODEL", "lab")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if time.Since(began) < ms("LAB_START_MS") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, model)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { chat(w, r, model, words) })
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	srv := &http.Server{Addr: ":" + env("LAB_PORT", "8000"), Handler: mux}
	go func() { <-stop; _ = srv.Close() }()
	fmt.Println("serving", model)
	if err := srv.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func chat(w http.ResponseWriter, r *http.Request, model string, words int) {
	var req struct{ Stream bool }
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	say := make([]string, words)
	for i := range say {
		say[i] = "w" + strconv.Itoa(i)
	}
	if !req.Stream {
		time.Sleep(time.Duration(words) * ms("LAB_TOKEN_MS"))
		_ = json.NewEncoder(w).Encode(map[string]any{"object": "chat.completion", "model": model, "choices": []any{map[string]any{
			"index": 0, "finish_reason": "stop", "message": map[string]string{"role": "assistant", "content": strings.Join(say, " ")}}}})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for i, word := range say {
		if i > 0 {
			word = " " + word
		}
		fmt.Fprintf(w, "data: {\"object\":\"chat.completion.chunk\",\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":%q}}]}\n\n", model, word)
		if out.Flush() != nil || r.Context().Err() != nil {
			return
		}
		time.Sleep(ms("LAB_TOKEN_MS"))
	}
	fmt.Fprintf(w, "data: {\"object\":\"chat.completion.chunk\",\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", model)
}
