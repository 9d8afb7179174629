package session

import (
	"encoding/json"
	"strings"

	"berth"
	"berth/guestapi"
)

// hookPayload is what we read of a hook's payload. Claude Code and Codex write
// snake_case, Grok writes camelCase; unknown fields are ignored. Prompts, tool
// inputs and answers are never read: they can hold secrets, and a state needs
// none of them.
type hookPayload struct {
	Event       string `json:"hook_event_name"`
	EventCamel  string `json:"hookEventName"`
	Type        string `json:"type"` // Codex notify: "agent-turn-complete"
	Notify      string `json:"notification_type"`
	NotifyCamel string `json:"notificationType"`
	Message     string `json:"message"`
	Tool        string `json:"tool_name"`
	ToolCamel   string `json:"toolName"`
	Error       string `json:"error"`
	ErrorType   string `json:"error_type"`
	// Generic events give these themselves.
	Kind     string `json:"kind"`
	Progress *int   `json:"progress"`
}

// HookAgent says what a hook line means. Nil = it says nothing about the state,
// and what was known stays. The agents share their event names (Claude Code's),
// so one table serves all; the names are compared without case, "-" and "_".
//
//	sessionstart                                 idle
//	userpromptsubmit, pretooluse, posttooluse,
//	posttoolusefailure, permissiondenied,
//	precompact, subagentstart                    working
//	pretooluse of a tool that asks the person    blocked, question
//	permissionrequest                            blocked, permission
//	elicitation                                  blocked, question
//	notification                                 by its type, see notification
//	stop, agentturncomplete, interrupt           idle
//	stopfailure                                  idle; blocked, auth when it names authentication
//	sessionend                                   done
//	working, blocked, idle, done, unknown        that state, with kind, message and progress of the payload
func HookAgent(line guestapi.HookLine) *berth.Agent {
	var p hookPayload
	if len(line.Payload) > 0 && json.Unmarshal(line.Payload, &p) != nil {
		p = hookPayload{} // a payload of another shape: the event name still counts
	}
	event := plainEvent(first(line.Event, p.Event, p.EventCamel, p.Type))
	a := hookState(event, p)
	if a == nil {
		return nil
	}
	a.Source = berth.AgentFromHook
	a.Since = line.At
	clean := CleanAgent(*a)
	return &clean
}

func hookState(event string, p hookPayload) *berth.Agent {
	tool := first(p.Tool, p.ToolCamel)
	switch event {
	case "userpromptsubmit", "beforesubmitprompt", "posttooluse", "posttoolusefailure", "permissiondenied",
		"precompact", "subagentstart":
		return &berth.Agent{State: berth.AgentWorking}
	case "pretooluse":
		switch plainEvent(tool) {
		case "askuserquestion", "requestuserinput":
			return &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedQuestion}
		}
		return &berth.Agent{State: berth.AgentWorking}
	case "permissionrequest":
		// The tool's name only: its input is the command line with all its secrets.
		return &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedPermission, Message: tool}
	case "elicitation":
		return &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedQuestion, Message: p.Message}
	case "notification":
		return notification(p)
	case "sessionstart", "stop", "agentturncomplete", "interrupt":
		return &berth.Agent{State: berth.AgentIdle}
	case "stopfailure":
		if why := plainEvent(p.Error + p.ErrorType); strings.Contains(why, "authentication") || strings.Contains(why, "oauth") {
			return &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedAuth}
		}
		return &berth.Agent{State: berth.AgentIdle}
	case "sessionend":
		return &berth.Agent{State: berth.AgentDone}
	case "working", "blocked", "idle", "done", "unknown":
		kind := berth.BlockedKind(p.Kind)
		return &berth.Agent{State: berth.AgentState(event), Kind: kind, Message: p.Message, Progress: p.Progress}
	}
	return nil
}

// notification reads the type, and the text only where an older agent sends none.
func notification(p hookPayload) *berth.Agent {
	switch plainEvent(first(p.Notify, p.NotifyCamel)) {
	case "permissionprompt", "approvalrequested":
		return &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedPermission, Message: p.Message}
	case "elicitationdialog", "userinputrequested":
		return &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedQuestion, Message: p.Message}
	case "idleprompt", "agentturncomplete":
		return &berth.Agent{State: berth.AgentIdle}
	case "":
		text := strings.ToLower(p.Message)
		switch {
		case strings.Contains(text, "permission"):
			return &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedPermission, Message: p.Message}
		case strings.Contains(text, "waiting for your input"):
			return &berth.Agent{State: berth.AgentIdle}
		}
	}
	return nil
}

// maxEvent bounds a name before it is compared: no event of any agent is longer.
const maxEvent = 64

func plainEvent(name string) string {
	if len(name) > maxEvent {
		name = name[:maxEvent]
	}
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(name))
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
