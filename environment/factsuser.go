package environment

import (
	"context"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth"
	"berth/guestapi"
)

// DockerGroup is the group that may use the Docker socket.
const DockerGroup = "docker"

// group is a line of group(5).
type group struct {
	gid     int
	members []string
}

const maxGroups = 65536

// parseGroups reads group(5). Lines that are no group (NIS marks among them)
// are passed over.
func parseGroups(data []byte) (map[string]group, error) {
	groups := map[string]group{}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
		if len(f) != 4 || f[0] == "" {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		if len(groups) == maxGroups {
			return nil, invalidf("there are more than %d groups", maxGroups)
		}
		g := group{gid: int(gid)}
		for m := range strings.SplitSeq(f[3], ",") {
			if m = strings.TrimSpace(m); m != "" {
				g.members = append(g.members, m)
			}
		}
		if _, ok := groups[f[0]]; !ok { // the first line counts, as for the system
			groups[f[0]] = g
		}
	}
	return groups, nil
}

// identity is what id(1) prints: who the guest is now.
type identity struct {
	name     string
	uid, gid int
	gids     []int
	groups   []string // names; "" where the system knows none
}

// idPart is one of "uid=1000(ada)"; a name may have spaces, as those of a
// directory service do.
var idPart = regexp.MustCompile(`^(\d+)(?:\(([^()]*)\))?$`)

func parseID(out string) (identity, error) {
	who := identity{uid: -1, gid: -1}
	text := strings.TrimSpace(out)
	text, _, _ = strings.Cut(text, " context=") // SELinux
	uid, rest, ok1 := strings.Cut(text, " gid=")
	gid, rest, ok2 := strings.Cut(rest, " groups=")
	uid, ok3 := strings.CutPrefix(uid, "uid=")
	if !ok1 || !ok2 || !ok3 {
		return who, invalidf("id says %q", clip(out))
	}
	gid, _, _ = strings.Cut(gid, " e") // euid= and egid=, of a program that changed them
	var err error
	if who.uid, who.name, err = parseIDPart(uid); err != nil {
		return who, err
	}
	if who.gid, _, err = parseIDPart(gid); err != nil {
		return who, err
	}
	for part := range strings.SplitSeq(rest, ",") {
		n, name, err := parseIDPart(part)
		if err != nil {
			return who, err
		}
		who.gids, who.groups = append(who.gids, n), append(who.groups, name)
	}
	return who, nil
}

func parseIDPart(s string) (int, string, error) {
	m := idPart.FindStringSubmatch(s)
	if m == nil {
		return 0, "", invalidf("id says %q", clip(s))
	}
	n, err := strconv.ParseUint(m[1], 10, 32)
	if err != nil {
		return 0, "", invalidf("id says %q", clip(s))
	}
	return int(n), m[2], nil
}

// homeOf finds the user's home in passwd(5).
func homeOf(passwd []byte, uid int) string {
	for line := range strings.Lines(string(passwd)) {
		f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
		if len(f) == 7 && f[2] == strconv.Itoa(uid) && path.IsAbs(f[5]) {
			return path.Clean(f[5])
		}
	}
	return ""
}

// readUser finds out who the guest is: the groups in force are those of its
// process, whatever the files say by now.
func (p *probe) readUser(ctx context.Context) {
	var who identity
	var home string
	all(
		func() {
			var err error
			if who, err = p.runID(ctx); err != nil {
				p.miss(FactUser, err)
			}
		},
		func() { p.readGroups(ctx) },
	)
	if who.uid >= 0 {
		// A user of a directory service is in no passwd file; the home is then not known.
		if data, _, err := p.file(ctx, "/etc/passwd", maxTable); err == nil {
			home = homeOf(data, who.uid)
		}
	}
	p.home, p.gids = home, who.gids
	u := &p.facts.User
	u.Name, u.UID, u.GID = who.name, who.uid, who.gid
	u.GroupEffective = slices.Contains(who.groups, DockerGroup)
}

func (p *probe) runID(ctx context.Context) (identity, error) {
	nobody := identity{uid: -1, gid: -1}
	id, err := p.find(ctx, "id")
	if err == nil && id == "" {
		err = berth.Errorf(berth.CodeCommandNotFound, "there is no program id")
	}
	var r guestapi.ExecResult
	if err == nil {
		r, err = p.exec(ctx, p.cfg.Timeouts.Program, id)
	}
	if err != nil {
		return nobody, err
	}
	if r.Code != 0 && len(r.Stdout) == 0 {
		return nobody, invalidf("id says %q", said(r))
	}
	who, err := parseID(string(r.Stdout)) // id fails when a group has no name, and says all the same
	if err != nil {
		return nobody, err
	}
	return who, nil
}

// readGroups reads the groups on disk. An image-based system keeps its own in
// /usr/lib/group, and only the user's additions in /etc/group.
func (p *probe) readGroups(ctx context.Context) {
	merged := map[string]group{}
	for _, name := range []string{"/etc/group", "/usr/lib/group"} {
		data, _, err := p.file(ctx, name, maxTable)
		var groups map[string]group
		if err == nil {
			groups, err = parseGroups(data)
		}
		switch {
		case absent(err):
			continue
		case err != nil:
			p.miss(FactGroupConfigured, err)
			return
		}
		for n, g := range groups {
			if old, ok := merged[n]; ok {
				g = group{gid: old.gid, members: append(old.members, g.members...)}
			}
			merged[n] = g
		}
	}
	p.groups = merged
}

// readMembership compares what is on disk with what is in force, and looks
// whether the user's services outlive the last session.
func (p *probe) readMembership(ctx context.Context) {
	u := &p.facts.User
	if docker, ok := p.groups[DockerGroup]; ok && u.UID >= 0 {
		u.GroupConfigured = docker.gid == u.GID || slices.Contains(docker.members, u.Name)
		u.GroupEffective = u.GroupEffective || slices.Contains(p.gids, docker.gid)
	}
	// A group of a directory service is in no file, and yet in force.
	u.GroupConfigured = u.GroupConfigured || u.GroupEffective
	if p.facts.Docker.Socket != "" {
		p.facts.Docker.SocketGroup = p.groupName(p.socketGID)
	}
	if u.Name == "" || strings.ContainsAny(u.Name, "/\x00") {
		return
	}
	ok, err := p.there(ctx, "/var/lib/systemd/linger/"+u.Name)
	if err != nil {
		p.miss(FactLinger, err)
	}
	u.Linger = ok
}

// groupName gives the name of a group, or its number where no file names it.
func (p *probe) groupName(gid int) string {
	var names []string
	for name, g := range p.groups {
		if g.gid == gid {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return strconv.Itoa(gid)
	}
	return slices.Min(names)
}
