package hoststep

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// command is one program that the helper may start. Its argv is exact; only a
// word that is a placeholder is filled in, with a value of that placeholder's
// own form.
type command struct {
	Name    string   `json:"name"`
	Argv    []string `json:"argv"`
	Seconds int      `json:"seconds"` // deadline; then TERM, and KILL later
	Undo    bool     `json:"undo"`    // never started by an apply
	Finish  bool     `json:"finish"`  // an interrupted run lets it end first: half a package is worse
}

const (
	brief    = 30      // seconds: asks something
	ordinary = 10 * 60 // seconds: does something
	install  = 60 * 60 // seconds: downloads and unpacks packages
)

// commands is the whole list. There is no shell in it, and in an apply no word
// that takes anything away; a test holds both.
func commands() []command {
	apt := func(words ...string) []string {
		return append([]string{"apt-get"}, words...)
	}
	return []command{
		// questions
		{Name: "uname", Argv: []string{"uname", "-m"}, Seconds: brief},
		{Name: "passwd", Argv: []string{"getent", "passwd", "{user}"}, Seconds: brief},
		{Name: "group", Argv: []string{"getent", "group", "docker"}, Seconds: brief},
		{Name: "dpkg-query", Argv: []string{"dpkg-query", "--show", "--showformat=${db:Status-Status}\t${Version}\n", "{package}"}, Seconds: brief},
		{Name: "dpkg-list", Argv: []string{"dpkg-query", "--show", "--showformat=${binary:Package}\t${Version}\t${db:Status-Status}\n"}, Seconds: brief},
		{Name: "rpm-query", Argv: []string{"rpm", "-q", "--queryformat", "%{VERSION}-%{RELEASE}\n", "{package}"}, Seconds: brief},
		{Name: "rpm-list", Argv: []string{"rpm", "-qa", "--queryformat", "%{NAME}\t%{VERSION}-%{RELEASE}\tinstalled\n"}, Seconds: brief},
		{Name: "dnf-obsoletes", Argv: []string{"dnf", "--quiet", "repoquery", "--latest-limit=1", "--obsoletes", "{ours}"}, Seconds: ordinary},
		{Name: "apt-plan", Argv: apt("install", "--simulate", "--no-install-recommends", "--no-remove", "{ours...}"), Seconds: ordinary},
		{Name: "dnf-plan", Argv: []string{"dnf", "--setopt=install_weak_deps=False", "--assumeno", "install", "{ours...}"}, Seconds: ordinary},
		{Name: "docker-info", Argv: []string{"docker", "--host", "unix:///var/run/docker.sock", "info", "--format", "{{json .}}"}, Seconds: brief},
		{Name: "cdi-list", Argv: []string{"nvidia-ctk", "cdi", "list"}, Seconds: brief},
		{Name: "dockerd-validate", Argv: []string{"dockerd", "--validate", "--config-file={candidate}"}, Seconds: brief},
		{Name: "docker-enabled", Argv: []string{"systemctl", "is-enabled", "docker.service"}, Seconds: brief},
		{Name: "docker-active", Argv: []string{"systemctl", "is-active", "docker.service"}, Seconds: brief},
		{Name: "refresh-enabled", Argv: []string{"systemctl", "is-enabled", "nvidia-cdi-refresh.path"}, Seconds: brief},
		{Name: "docker-journal", Argv: []string{"journalctl", "--unit=docker.service", "--lines=40", "--no-pager", "--output=cat"}, Seconds: brief},
		// changes
		{Name: "apt-refresh", Argv: apt("update", "-o", "Dir::Etc::sourcelist={source}", "-o", "Dir::Etc::sourceparts=-",
			"-o", "APT::Get::List-Cleanup=0", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=3"), Seconds: ordinary},
		{Name: "apt-install", Argv: apt("install", "-y", "--no-install-recommends", "--no-remove",
			"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=120", "{ours...}"), Seconds: install, Finish: true},
		{Name: "dnf-refresh", Argv: []string{"dnf", "-y", "--repo={repository}", "makecache"}, Seconds: ordinary},
		{Name: "dnf-install", Argv: []string{"dnf", "-y", "--setopt=install_weak_deps=False", "install", "{ours...}"}, Seconds: install, Finish: true},
		{Name: "cdi-generate", Argv: []string{"nvidia-ctk", "cdi", "generate", "--output=" + cdiSpec}, Seconds: ordinary},
		{Name: "refresh-on", Argv: []string{"systemctl", "enable", "--now", "nvidia-cdi-refresh.path"}, Seconds: ordinary},
		{Name: "docker-reload", Argv: []string{"systemctl", "reload", "docker.service"}, Seconds: ordinary},
		{Name: "docker-restart", Argv: []string{"systemctl", "restart", "docker.service"}, Seconds: ordinary},
		{Name: "docker-forgive", Argv: []string{"systemctl", "reset-failed", "docker.service", "docker.socket"}, Seconds: brief},
		{Name: "docker-on", Argv: []string{"systemctl", "enable", "--now", "docker.service"}, Seconds: ordinary},
		{Name: "group-add", Argv: []string{"usermod", "-aG", "docker", "{user}"}, Seconds: ordinary},
		// undoing
		{Name: "apt-simulate", Argv: apt("remove", "--simulate", "-o", "APT::Get::AutomaticRemove=false", "{recorded...}"), Seconds: ordinary, Undo: true},
		{Name: "apt-remove", Argv: apt("remove", "-y", "-o", "APT::Get::AutomaticRemove=false", "-o", "DPkg::Lock::Timeout=120", "{recorded...}"), Seconds: install, Undo: true, Finish: true},
		{Name: "rpm-simulate", Argv: []string{"rpm", "-e", "--test", "{recorded...}"}, Seconds: ordinary, Undo: true},
		{Name: "rpm-remove", Argv: []string{"rpm", "-e", "{recorded...}"}, Seconds: install, Undo: true, Finish: true},
		{Name: "docker-off", Argv: []string{"systemctl", "disable", "docker.service"}, Seconds: ordinary, Undo: true},
		{Name: "refresh-off", Argv: []string{"systemctl", "disable", "nvidia-cdi-refresh.path"}, Seconds: ordinary, Undo: true},
		{Name: "group-drop", Argv: []string{"gpasswd", "--delete", "{user}", "docker"}, Seconds: ordinary, Undo: true},
	}
}

// forms is what a value may look like. None can begin with "-", hold a blank or
// name a file outside the one folder that it is for.
var forms = map[string]*regexp.Regexp{
	"{user}":       userForm,
	"{package}":    packageForm,
	"{recorded}":   packageForm,
	"{ours}":       packageForm,
	"{repository}": regexp.MustCompile(`^[a-z][a-z-]{0,63}$`),
	"{source}":     regexp.MustCompile(`^/etc/apt/sources\.list(\.d/[A-Za-z0-9_][A-Za-z0-9._-]*\.(list|sources))?$`),
	"{candidate}":  regexp.MustCompile(`^/etc/docker/\.daemon\.json\.berth-[0-9a-f]{16}$`),
}

var packageForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+._:-]{0,127}$`)

// fill finds the command and writes its argv out. This is the gate that every
// start passes: what is not exactly one of the list is an error.
func (r recipe) fill(action Action, name string, values ...string) (command, error) {
	i := slices.IndexFunc(r.Commands, func(c command) bool { return c.Name == name })
	if i < 0 {
		return command{}, fmt.Errorf("%s is not a command of the recipe", name)
	}
	c := r.Commands[i]
	if c.Undo && action != Undo {
		return command{}, fmt.Errorf("%s is for undoing only", name)
	}
	var argv []string
	for _, word := range c.Argv {
		head, place, tail, found := cut(word)
		if !found {
			argv = append(argv, word)
			continue
		}
		many := strings.HasSuffix(place, "...}")
		place = strings.Replace(place, "...}", "}", 1)
		take := min(1, len(values))
		if many {
			take = len(values)
		}
		if take == 0 {
			return command{}, fmt.Errorf("%s lacks a value for %s", name, place)
		}
		for _, v := range values[:take] {
			if !forms[place].MatchString(v) || place == "{ours}" && !r.installs(v) {
				return command{}, fmt.Errorf("a value for %s of %s is refused", place, name)
			}
			argv = append(argv, head+v+tail)
		}
		values = values[take:]
	}
	if len(values) > 0 {
		return command{}, fmt.Errorf("%s takes fewer values", name)
	}
	c.Argv = argv
	return c, nil
}

// cut splits a word at its placeholder: "{" a name "}" of forms, at most one.
func cut(word string) (head, place, tail string, found bool) {
	for p := range forms {
		for _, form := range []string{p, strings.Replace(p, "}", "...}", 1)} {
			if h, t, ok := strings.Cut(word, form); ok {
				return h, form, t, true
			}
		}
	}
	return word, "", "", false
}

// installs reports whether the package is one that the recipe installs.
func (r recipe) installs(name string) bool {
	return slices.ContainsFunc(r.Distributions, func(d distribution) bool {
		return slices.Contains(d.Docker.Packages, name) || slices.Contains(d.NVIDIA.Packages, name) || slices.Contains(d.NVIDIA.Base, name)
	})
}
