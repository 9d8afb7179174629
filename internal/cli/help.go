package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// help writes the help of a command. It is our own because the answer must be
// the same piped and on a terminal but for the bold headings, and because
// nothing may ask the terminal for its colours: see docs/decisions.
func (a *app) help(cmd *cobra.Command, _ []string) {
	var b strings.Builder
	heading := func(text string) {
		b.WriteString("\n" + a.styled(a.env.Stdout, styleBold, text) + "\n")
	}
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	b.WriteString(text + "\n")
	heading("Usage")
	if cmd.Runnable() && cmd.HasParent() {
		b.WriteString("  " + cmd.UseLine() + "\n")
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("  " + cmd.CommandPath() + " COMMAND\n")
	}
	if cmd.Example != "" {
		heading("Examples")
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			b.WriteString("  " + line + "\n")
		}
	}
	if cmd.HasAvailableSubCommands() {
		heading("Commands")
		commands := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return !c.IsAvailableCommand() })
		slices.SortStableFunc(commands, func(x, y *cobra.Command) int { return a.rank(x) - a.rank(y) })
		for _, c := range commands {
			fmt.Fprintf(&b, "  %-12s%s\n", c.Name(), c.Short)
		}
	}
	writeFlags(&b, heading, "Flags", cmd.LocalNonPersistentFlags())
	writeFlags(&b, heading, "Flags of every command", cmd.Root().PersistentFlags())
	_, _ = io.WriteString(a.env.Stdout, b.String()) // help has nobody to fail to
}

// rank orders commands as the root lists them; what cobra adds comes last.
func (a *app) rank(cmd *cobra.Command) int {
	if i := slices.Index(a.order, cmd.Name()); i >= 0 {
		return i
	}
	return len(a.order)
}

func writeFlags(b *strings.Builder, heading func(string), title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	heading(title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		short := "    "
		if f.Shorthand != "" {
			short = "-" + f.Shorthand + ", "
		}
		value, text := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if value != "" {
			name += " " + value
		}
		fmt.Fprintf(b, "  %s%-26s%s\n", short, name, text)
	})
}
