package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"berth"
)

// renderPlan shows a plan to the person who is to agree to it: what is done as
// root and what is not, why, what it downloads, what to know, what stands
// against it, and with next what to do then: not where the command goes on from
// here itself, or says it. Lines are wrapped at width characters; 0 = not at
// all. Commands are never wrapped, so that they can be copied.
func renderPlan(w io.Writer, p berth.Plan, width int, colour, next bool) error {
	t := &planText{width: width, colour: colour}
	t.head(p)
	t.changes(p)
	t.notes("Stands against it", styleError, "✗", p.Blockers)
	t.notes("You should know", styleWarn, "!", p.Warnings)
	t.notices(p.Notices)
	t.comes(p)
	if next {
		t.next(p)
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

type planText struct {
	b      strings.Builder
	width  int
	colour bool
}

func (t *planText) style(style, text string) string {
	if !t.colour || text == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (t *planText) head(p berth.Plan) {
	what := "the environment"
	if p.Target.Engine != "" {
		what = p.Target.Engine
	}
	if p.Release != nil {
		what = p.Release.Engine + " " + p.Release.Version
	}
	verb, on := "Set up", "on"
	switch p.Kind {
	case berth.OperationUpdate:
		verb = "Update"
		what = strings.Replace(what, " ", " to ", 1)
	case berth.OperationRemove:
		verb, on = "Remove", "from"
	}
	host := p.Target.Host
	if host == "" {
		host = berth.LocalHost
	}
	t.line("", "", t.style(styleBold, oneLine(fmt.Sprintf("%s %s %s %s", verb, what, on, host), 0)))
	t.wrap("  ", "  ", styleDim, strings.Join(planSummary(p), " · "))
}

// planSummary is the second line: the state of the host, the card, the sizes.
func planSummary(p berth.Plan) []string {
	var out []string
	if p.Kind != berth.OperationRemove {
		out = append(out, availabilityText(p))
	}
	for _, g := range p.GPUs {
		if g.UUID == p.GPU && p.GPU != "" {
			out = append(out, g.Name)
		}
	}
	if p.DownloadBytes > 0 {
		out = append(out, "downloads "+planBytes(p.DownloadBytes))
	}
	if p.RequiredBytes > 0 {
		space := "needs " + planBytes(p.RequiredBytes)
		if p.FreeBytes != nil {
			space += " of " + planBytes(*p.FreeBytes) + " free"
		}
		if p.DiskPath != "" {
			space += " at " + p.DiskPath
		}
		out = append(out, space)
	}
	return out
}

func availabilityText(p berth.Plan) string {
	switch p.Availability {
	case berth.Supported:
		return "ready as it is"
	case berth.SetupRequired:
		return "berth can make it ready"
	case berth.PrerequisiteBlocked:
		return "something must be done first"
	}
	return "not possible on this host"
}

// changes lists what is done, counted through. What root does stands apart.
func (t *planText) changes(p berth.Plan) {
	number, section := 0, ""
	for _, c := range p.Changes {
		head := "As you"
		if c.Elevated {
			head = "As root, by the helper that you start with sudo or pkexec"
		}
		if head != section {
			style := styleBold
			if c.Elevated {
				style = styleWarn
			}
			t.section(style, head)
			section = head
		}
		number++
		text := c.Text
		if c.Bytes > 0 {
			text += " (" + planBytes(c.Bytes) + ")"
		}
		t.wrap(fmt.Sprintf("  %2d. ", number), "      ", "", text)
		if c.Why != "" {
			t.wrap("        ", "        ", styleDim, c.Why)
		}
	}
}

func (t *planText) notes(head, style, mark string, notes []berth.PlanNote) {
	if len(notes) == 0 {
		return
	}
	t.section(style, head)
	for _, n := range notes {
		t.wrap("  "+t.style(style, mark)+" ", "    ", "", n.Message)
		for _, c := range n.Commands {
			t.line("      ", styleHint, "$ "+oneLine(c, 0))
		}
	}
}

func (t *planText) notices(notices []string) {
	if len(notices) == 0 {
		return
	}
	t.b.WriteString("\n")
	for _, n := range notices {
		t.wrap("  ", "  ", styleDim, n)
	}
}

// comes tells what a person will have to do in between.
func (t *planText) comes(p berth.Plan) {
	t.b.WriteString("\n")
	if !p.Feasible() || p.Availability == berth.Unsupported {
		return
	}
	if len(p.Changes) == 0 {
		t.wrap("  ", "  ", styleGood, "Nothing has to be done.")
	}
	if p.Relogin {
		t.wrap("  ", "  ", "", "After that you have to log out and in once; the next berth up goes on from there.")
	}
	if p.Reboot {
		t.wrap("  ", "  ", "", "The machine may have to be restarted; berth goes on by itself after that.")
	}
}

// next tells how the plan is approved, or what to do about it.
func (t *planText) next(p berth.Plan) {
	switch {
	case !p.Feasible():
		t.wrap("  ", "  ", "", "Nothing was changed. Do what is said above, then give the command again.")
		return
	case p.Availability == berth.Unsupported:
		t.wrap("  ", "  ", "", "Nothing was changed.")
		return
	}
	t.wrap("  ", "  ", "", "Only this plan is carried out. To approve it, give the command again with --yes, or with:")
	t.line("      ", styleHint, "--approve "+oneLine(p.Digest, 0))
}

func (t *planText) section(style, head string) {
	t.b.WriteString("\n")
	t.wrap("  ", "  ", style, head)
}

// line writes one line as it is.
func (t *planText) line(indent, style, text string) {
	if style != "" {
		text = t.style(style, text)
	}
	t.b.WriteString(indent + text + "\n")
}

// wrap writes text over as many lines as it takes, the first after first, the
// others after rest, which is as wide. The text may be foreign: it is made safe.
func (t *planText) wrap(first, rest, style, text string) {
	if text == "" {
		return
	}
	indent, room := first, t.width-utf8.RuneCountInString(rest)
	var line string
	flush := func() {
		t.b.WriteString(indent + t.style(style, line) + "\n")
		indent, line = rest, ""
	}
	for word := range strings.FieldsSeq(oneLine(text, 0)) {
		if line != "" && t.width > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > room {
			flush()
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	flush()
}

// planBytes writes a size in units of 1000, as disks and downloads are sold.
func planBytes(n int64) string {
	value, unit := float64(n), "bytes"
	for _, u := range []string{"kB", "MB", "GB", "TB"} {
		if value < 1000 {
			break
		}
		value, unit = value/1000, u
	}
	if unit != "bytes" && value < 10 {
		return fmt.Sprintf("%.1f %s", value, unit)
	}
	return fmt.Sprintf("%.0f %s", value, unit)
}
