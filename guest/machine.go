package guest

import (
	"io"
	"net/http"
	"net/url"
	"strconv"

	"berth"
	"berth/guestapi"
)

// machineRoutes are the calls that show the machine rather than a session.
func (s *server) machineRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/exec", s.exec)
	mux.HandleFunc("POST /v1/dial", s.dial)
	mux.HandleFunc("GET /v1/files", files(func(q url.Values) (guestapi.FileContent, error) {
		limit, err := readLimit(q.Get("max"))
		if err != nil {
			return guestapi.FileContent{}, err
		}
		return readFile(q.Get("path"), limit)
	}))
	mux.HandleFunc("GET /v1/files/stat", files(func(q url.Values) (guestapi.FileInfo, error) {
		return statFile(q.Get("path"), q.Get("follow") == "true")
	}))
	mux.HandleFunc("GET /v1/files/list", files(func(q url.Values) (guestapi.DirList, error) { return listDir(q.Get("path")) }))
	mux.HandleFunc("GET /v1/files/space", files(func(q url.Values) (guestapi.Space, error) { return space(q.Get("path")) }))
	mux.HandleFunc("PUT /v1/files", s.writeFile)
	mux.HandleFunc("POST /v1/files/dir", files(func(q url.Values) (struct{}, error) {
		mode, err := fileMode(q.Get("mode"))
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, makeDir(q.Get("path"), mode)
	}))
	mux.HandleFunc("DELETE /v1/files", files(func(q url.Values) (struct{}, error) { return struct{}{}, removeFile(q.Get("path")) }))
}

// files answers a call that is its query and no body.
func files[T any](f func(url.Values) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := f(r.URL.Query())
		if err != nil {
			problem(w, r, err)
			return
		}
		answer(w, http.StatusOK, out)
	}
}

func (s *server) writeFile(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	mode, err := fileMode(q.Get("mode"))
	if err != nil {
		problem(w, r, err)
		return
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, guestapi.MaxFileWrite))
	if err == nil {
		err = writeFile(q.Get("path"), data, mode)
	} else {
		err = bodyError(err, guestapi.MaxFileWrite)
	}
	if err != nil {
		problem(w, r, err)
		return
	}
	answer(w, http.StatusOK, struct{}{})
}

func (s *server) exec(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, berth.MaxRequest))
	if err != nil {
		problem(w, r, bodyError(err, berth.MaxRequest))
		return
	}
	in, err := parseExec(body)
	if err != nil {
		problem(w, r, err)
		return
	}
	select {
	case s.execs <- struct{}{}:
		defer func() { <-s.execs }()
	case <-r.Context().Done():
		problem(w, r, r.Context().Err())
		return
	case <-s.g.stopping:
		problem(w, r, errStopping())
		return
	}
	out, err := s.g.exec(r.Context(), in)
	if err != nil {
		problem(w, r, err)
		return
	}
	answer(w, http.StatusOK, out)
}

// readLimit reads the parameter max; absent or 0 is the most that there is.
func readLimit(text string) (int64, error) {
	if text == "" {
		return guestapi.MaxFileRead, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > guestapi.MaxFileRead {
		return 0, berth.Errorf(berth.CodeInvalidArgument, "max %q is not a number from 0 to %d", text, guestapi.MaxFileRead)
	}
	if n == 0 {
		n = guestapi.MaxFileRead
	}
	return n, nil
}

// fileMode reads permission bits in octal. Set-id and sticky bits are nothing
// that a guest gives, and a file without any permission is a forgotten argument.
func fileMode(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		return 0, berth.Errorf(berth.CodeInvalidArgument, "mode %q is not an octal number from 1 to 777", text)
	}
	return uint32(n), nil //nolint:gosec // at most 0o777
}
