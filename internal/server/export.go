package server

import (
	"net/http"

	"berth"
)

// export answers GET /v1/sessions/{ref}/export.
func (a api) export(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Export == nil {
		writeProblem(w, r, berth.Errorf(berth.CodeNotFound, "this daemon exports nothing"))
		return
	}
	out := &exportWriter{w: w}
	format := r.URL.Query().Get("format")
	if out.contentType = "text/plain; charset=utf-8"; format == "cast" {
		out.contentType = "application/x-asciicast"
	}
	err := a.cfg.Export(r.Context(), r.PathValue("ref"), format, out)
	switch {
	case err == nil && !out.begun:
		out.begin() // an empty export is one, too
	case err != nil && !out.begun:
		writeProblem(w, r, err)
	case err != nil:
		a.cfg.Log.Warn("an export broke off", "error", err)
		panic(http.ErrAbortHandler) // half of it must not look like a whole one
	}
}

// exportWriter says 200 with the first byte, so that what fails before can
// still be a problem document.
type exportWriter struct {
	w           http.ResponseWriter
	contentType string
	begun       bool
}

func (e *exportWriter) begin() {
	e.begun = true
	e.w.Header().Set("Content-Type", e.contentType)
	e.w.WriteHeader(http.StatusOK)
}

// Write implements io.Writer.
func (e *exportWriter) Write(p []byte) (int, error) {
	if !e.begun {
		e.begin()
	}
	return e.w.Write(p)
}
