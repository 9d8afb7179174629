// labhelper stands in for berth-hoststep on a machine that stands in for this
// one. BERTH_LAB_HELPER says how it behaves; it changes only what a test gave it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/hoststep"
)

type behaviour struct {
	// Copy are files to make, by path: what the steps would have changed.
	Copy map[string]string
	// Outcome of the result; "" = completed. "none" = no result is written.
	Outcome string
	// Nonce and Step replace those of the request: a receipt for another one.
	Nonce, Step string
	Fail        string // log tail of a failure
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	path := os.Args[len(os.Args)-1]
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	r, err := hoststep.ParseRequest(data)
	if err != nil {
		return err
	}
	if r.Recipe != hoststep.ThisRecipe() || r.ParametersDigest != hoststep.ParametersDigest(r.Parameters) {
		return fmt.Errorf("the request is not for this recipe")
	}
	var b behaviour
	if err := json.Unmarshal([]byte(os.Getenv("BERTH_LAB_HELPER")), &b); err != nil {
		return err
	}
	for path, text := range b.Copy {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // a specification is for everybody
			return err
		}
	}
	if b.Outcome == "none" {
		return fmt.Errorf("sudo: a password is required")
	}
	res := hoststep.Result{
		Schema: hoststep.Schema, StepID: r.StepID, OperationID: r.OperationID, Action: r.Action, Recipe: r.Recipe,
		ParametersDigest: r.ParametersDigest, Nonce: r.Nonce, Revision: r.Revision, Outcome: hoststep.Completed,
		Steps: []hoststep.StepResult{}, FinishedAt: time.Now().UTC(), LogTail: b.Fail,
	}
	if b.Outcome != "" {
		res.Outcome = hoststep.Outcome(b.Outcome)
	}
	if b.Nonce != "" {
		res.Nonce = b.Nonce
	}
	if b.Step != "" {
		res.StepID = b.Step
	}
	text, err := json.Marshal(res)
	if err != nil {
		return err
	}
	out := strings.TrimSuffix(path, hoststep.RequestSuffix) + hoststep.ResultSuffix
	tmp := filepath.Join(filepath.Dir(out), ".tmp-result")
	if err := os.WriteFile(tmp, text, 0o644); err != nil { //nolint:gosec // as the helper leaves it
		return err
	}
	return os.Rename(tmp, out)
}
