package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"berth"
)

func newSend(a *app) *cobra.Command {
	var enter, raw bool
	cmd := &cobra.Command{
		Use:   "send NAME TEXT",
		Short: "Type text into a session",
		Long: `Type text into a session, as one paste where its program takes pastes
(bracketed paste), so that a line break inside does not submit. --enter presses
Enter after it. TEXT is - for standard input.`,
		Example: `berth send calm-heron --enter 'run the tests'
git diff | berth send calm-heron -
berth send calm-heron --raw "$(printf '\003')"   # Ctrl-C`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && enter {
				return nil // Enter alone
			}
			return exactArgs("NAME", "TEXT")(cmd, args)
		},
		ValidArgsFunction: a.completeSessions(true, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := berth.InputRequest{Enter: enter, Paste: !raw}
			if len(args) > 1 {
				data, err := a.sendText(args[1])
				if err != nil {
					return err
				}
				in.Data = data
			}
			api, err := a.client()
			if err != nil {
				return err
			}
			if err := api.Input(cmd.Context(), args[0], in); err != nil {
				return err
			}
			if a.flags.json {
				return a.answer(doneAnswer{version1, args[0], len(in.Data)})
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&enter, "enter", false, "press Enter after the text")
	cmd.Flags().BoolVar(&raw, "raw", false, "as typed keys, never as a paste")
	return cmd
}

// doneAnswer is the document of send.
type doneAnswer struct {
	V       int    `json:"v"`
	Session string `json:"session"` // as it was named
	Bytes   int    `json:"bytes"`   // of text, without Enter
}

// sendText is the text, or standard input.
func (a *app) sendText(arg string) ([]byte, error) {
	r := io.Reader(strings.NewReader(arg))
	if arg == "-" {
		r = a.env.Stdin
	}
	data, err := io.ReadAll(io.LimitReader(r, berth.MaxInput+1))
	if err != nil {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "read the text: %w", err)
	}
	if len(data) > berth.MaxInput {
		return nil, berth.Errorf(berth.CodeTooLarge, "the text is larger than %d bytes", berth.MaxInput)
	}
	return data, nil
}
