package cli

import (
	"github.com/spf13/cobra"

	"berth"
)

// viewFlags are the flags that run and attach share.
type viewFlags struct {
	policy     string
	detachKey  string
	noSSHAgent bool
}

func (f *viewFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.policy, "size-policy", "", "whose terminal decides the size: `POLICY` latest, smallest or fixed")
	cmd.Flags().StringVar(&f.detachKey, "detach-key", "", "`KEYS` that leave the session running, like 'ctrl-b d'; none = no keys do")
	cmd.Flags().BoolVar(&f.noSSHAgent, "no-ssh-agent", false, "do not lend your SSH agent to the session while you are attached")
	_ = cmd.RegisterFlagCompletionFunc("size-policy", cobra.FixedCompletions( // the flag exists
		[]string{string(berth.SizeLatest), string(berth.SizeSmallest), string(berth.SizeFixed)}, cobra.ShellCompDirectiveNoFileComp))
}

// options reads the flags.
func (f *viewFlags) options(a *app, cmd *cobra.Command) (attachOptions, error) {
	o := attachOptions{policy: berth.SizePolicy(f.policy), keyText: f.detachKey}
	if o.keyText == "" {
		o.keyText = a.detachKeyText()
	}
	if o.policy != "" && !o.policy.Valid() {
		return o, usage(cmd, "--size-policy %q is not latest, smallest or fixed", f.policy)
	}
	if !f.noSSHAgent {
		o.sshSock = a.env.Getenv("SSH_AUTH_SOCK")
	}
	var err error
	o.keys, err = parseDetachKeys(o.keyText)
	return o, err
}

func newAttach(a *app) *cobra.Command {
	var f viewFlags
	var readOnly bool
	cmd := &cobra.Command{
		Use:   "attach NAME",
		Short: "Show a session on this terminal and type into it",
		Long: `Show a session on this terminal and type into it. ctrl-\ d leaves it running;
ctrl-\ twice sends one ctrl-\ to the program. When the program ends, so does
this, with the program's exit status.

When the daemon or the network goes away, this stays and comes back by itself.`,
		Example: `berth attach calm-heron
berth attach calm-heron --read-only
berth attach calm-heron --detach-key 'ctrl-b d'`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: a.completeSessions(true, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(a, cmd)
			if err != nil {
				return err
			}
			o.name, o.ref, o.readOnly = args[0], args[0], readOnly
			if readOnly {
				o.sshSock = "" // who may only look lends nothing
			}
			t, err := a.openTerminal()
			if err != nil {
				return err
			}
			return a.attach(cmd.Context(), t, o)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "only look; ctrl-c leaves too")
	return cmd
}
