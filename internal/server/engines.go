package server

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"berth"
)

// Releases are the releases of engines that the daemon knows. The errors are
// berth.Errors.
type Releases interface {
	// List gives them by engine, the newest first.
	List() []berth.ReleaseView
	// Add keeps a document; added = false where it was there with that content.
	Add(data []byte) (view berth.ReleaseView, added bool, err error)
	// Fetch gets a document from an https URL and keeps nothing.
	Fetch(ctx context.Context, url string) ([]byte, error)
}

// Inputs and outputs of these routes, and their documents.
type (
	engineInput struct {
		Engine string `path:"engine" maxLength:"64" doc:"name of the engine"`
	}
	releaseInput struct {
		ID string `path:"id" maxLength:"64" doc:"id of the release"`
	}
	addReleaseInput struct {
		Body berth.AddRelease
	}
	releaseOut struct {
		Status int
		Body   berth.ReleaseView
	}
	engineDocument struct {
		V int `json:"v"`
		berth.Engine
	}
)

func (s *Server) releases() (Releases, error) {
	if s.cfg.Releases == nil && s.cfg.Unavailable != nil {
		return nil, s.cfg.Unavailable
	}
	if s.cfg.Releases == nil {
		return nil, berth.Errorf(berth.CodeNotFound, "this daemon knows no engines").WithHint("run a berth that has them")
	}
	return s.cfg.Releases, nil
}

func (a api) engineRoutes() {
	route(a, huma.Operation{
		OperationID: "list-engines", Method: http.MethodGet, Path: "/v1/engines", Tags: []string{"engines"},
		Summary: "The engines that there are releases of, and where they are installed",
	}, func(ctx context.Context, _ *none) (*body[berth.Engines], error) {
		all, err := a.engines(ctx)
		return &body[berth.Engines]{berth.Engines{V: apiVersion, Engines: all}}, err
	})
	route(a, huma.Operation{
		OperationID: "get-engine", Method: http.MethodGet, Path: "/v1/engines/{engine}", Tags: []string{"engines"},
		Summary: "One engine with its releases and installations",
	}, func(ctx context.Context, in *engineInput) (*body[engineDocument], error) {
		all, err := a.engines(ctx)
		if err != nil {
			return nil, err
		}
		names := []string{}
		for _, e := range all {
			if e.Engine == in.Engine {
				return &body[engineDocument]{engineDocument{apiVersion, e}}, nil
			}
			names = append(names, e.Engine)
		}
		return nil, berth.Errorf(berth.CodeReleaseNotFound, "there is no engine %q", in.Engine).WithHint("there are: " + strings.Join(names, ", "))
	})
	route(a, huma.Operation{
		OperationID: "list-releases", Method: http.MethodGet, Path: "/v1/releases", Tags: []string{"engines"},
		Summary: "The releases, by engine, the newest first",
	}, func(context.Context, *none) (*body[berth.Releases], error) {
		r, err := a.releases()
		if err != nil {
			return nil, err
		}
		return &body[berth.Releases]{berth.Releases{V: apiVersion, Releases: append([]berth.ReleaseView{}, r.List()...)}}, nil
	})
	route(a, huma.Operation{
		OperationID: "get-release", Method: http.MethodGet, Path: "/v1/releases/{id}", Tags: []string{"engines"},
		Summary: "One release",
	}, func(_ context.Context, in *releaseInput) (*releaseOut, error) {
		r, err := a.releases()
		if err != nil {
			return nil, err
		}
		for _, v := range r.List() {
			if v.ID == in.ID {
				return &releaseOut{http.StatusOK, v}, nil
			}
		}
		return nil, berth.Errorf(berth.CodeReleaseNotFound, "there is no release %q", in.ID)
	})
	route(a, huma.Operation{
		OperationID: "add-release", Method: http.MethodPost, Path: "/v1/releases", Tags: []string{"engines"},
		Summary:       "Add a release: its document, or an https URL of one. A release never changes: the same id with other content is refused",
		DefaultStatus: http.StatusCreated,
	}, a.addRelease)
}

func (a api) addRelease(ctx context.Context, in *addReleaseInput) (*releaseOut, error) {
	r, err := a.releases()
	if err != nil {
		return nil, err
	}
	data := []byte(in.Body.Document)
	switch {
	case (in.Body.URL == "") == (len(data) == 0):
		return nil, berth.Errorf(berth.CodeInvalidArgument, "give a document or a URL, one of the two")
	case in.Body.URL != "" && !strings.HasPrefix(in.Body.URL, "https://"):
		// A file of the daemon's machine is not the caller's to name.
		return nil, berth.Errorf(berth.CodeInvalidArgument, "the URL of a release begins with https://").WithHint("send the document itself")
	case in.Body.URL != "":
		ctx, cancel := a.untilStop(ctx)
		defer cancel()
		if data, err = r.Fetch(ctx, in.Body.URL); err != nil {
			return nil, a.stoppedError(err)
		}
	}
	view, added, err := r.Add(data)
	out := &releaseOut{http.StatusOK, view}
	if added {
		out.Status = http.StatusCreated
	}
	return out, err
}

// engines joins the releases with what is installed. An installation whose
// releases are all gone is still shown.
func (a api) engines(ctx context.Context) ([]berth.Engine, error) {
	r, err := a.releases()
	if err != nil {
		return nil, err
	}
	byName := map[string]*berth.Engine{}
	at := func(name string) *berth.Engine {
		if byName[name] == nil {
			byName[name] = &berth.Engine{Engine: name, Releases: []berth.ReleaseView{}, Installations: []berth.Installation{}}
		}
		return byName[name]
	}
	for _, v := range r.List() {
		e := at(v.Engine)
		e.Releases = append(e.Releases, v)
	}
	if a.cfg.Environments != nil {
		envs, err := a.cfg.Environments.List(ctx)
		if err != nil {
			return nil, err
		}
		for _, env := range envs.Environments {
			for _, in := range env.Installations {
				e := at(in.Engine)
				e.Installations = append(e.Installations, in)
			}
		}
	}
	all := make([]berth.Engine, 0, len(byName))
	for _, e := range byName {
		all = append(all, *e)
	}
	slices.SortFunc(all, func(x, y berth.Engine) int { return strings.Compare(x.Engine, y.Engine) })
	return all, nil
}
