package berth

import "encoding/json"

// Engine is a model server by name, with what is known of it.
type Engine struct {
	Engine        string         `json:"engine"`        // "vllm"
	Releases      []ReleaseView  `json:"releases"`      // never nil; the newest first
	Installations []Installation `json:"installations"` // on all hosts; never nil
}

// Engines answers GET /v1/engines.
type Engines struct {
	V       int      `json:"v"`
	Engines []Engine `json:"engines"` // never nil; by name
}

// Releases answers GET /v1/releases.
type Releases struct {
	V        int           `json:"v"`
	Releases []ReleaseView `json:"releases"` // never nil; by engine, the newest first
}

// AddRelease is the body of POST /v1/releases: one of the two.
type AddRelease struct {
	Document json.RawMessage `json:"document,omitempty"` // the release itself; read strictly
	URL      string          `json:"url,omitempty"`      // https, from where the daemon gets it
}

// ResetOperations is the body of POST /v1/operations/reset.
type ResetOperations struct {
	Host string `json:"host"` // whose operations that are over are put away
}
