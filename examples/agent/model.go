package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// message is a turn of the conversation: a user's text, a model's text and calls of tools,
// or the results of those calls.
type message struct {
	model   bool // it is the model's
	text    string
	calls   []call
	results []result
}

// call is a model's request to use a tool.
type call struct {
	id, name string
	input    json.RawMessage
}

type result struct{ id, text string }

type tool struct {
	name, description string
	schema            json.RawMessage // of the input
}

// model is behind an API of OpenAI's form or, where anthropic is set, of Anthropic's.
type model struct {
	url, name string
	anthropic bool
	c         *http.Client
}

type object = map[string]any

// next returns the turn that continues a conversation.
func (m model) next(ctx context.Context, system string, tools []tool, talk []message) (message, error) {
	if m.anthropic {
		return m.nextMessage(ctx, system, tools, talk)
	}
	return m.nextChoice(ctx, system, tools, talk)
}

func (m model) post(ctx context.Context, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	resp, err := m.c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the model's API answered %s: %.1000s", resp.Status, answer)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

// nextChoice uses OpenAI's chat completions.
func (m model) nextChoice(ctx context.Context, system string, tools []tool, talk []message) (said message, err error) {
	turns, can := []object{{"role": "system", "content": system}}, []object{}
	for _, t := range tools {
		can = append(can, object{"type": "function", "function": object{"name": t.name, "description": t.description, "parameters": t.schema}})
	}
	for _, t := range talk {
		for _, r := range t.results {
			turns = append(turns, object{"role": "tool", "tool_call_id": r.id, "content": r.text})
		}
		switch {
		case t.model:
			turn := object{"role": "assistant", "content": t.text}
			if calls := []object{}; len(t.calls) > 0 {
				for _, c := range t.calls {
					calls = append(calls, object{"id": c.id, "type": "function", "function": object{"name": c.name, "arguments": string(c.input)}})
				}
				turn["tool_calls"] = calls
			}
			turns = append(turns, turn)
		case t.text != "":
			turns = append(turns, object{"role": "user", "content": t.text})
		}
	}
	var out struct {
		Choices []struct {
			Message struct {
				Content string
				Calls   []struct {
					ID       string
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
		}
	}
	if err := m.post(ctx, object{"model": m.name, "messages": turns, "tools": can}, &out); err != nil {
		return said, err
	}
	if len(out.Choices) == 0 {
		return said, errors.New("the model's API answered without a choice")
	}
	said.model, said.text = true, out.Choices[0].Message.Content
	for _, c := range out.Choices[0].Message.Calls {
		said.calls = append(said.calls, call{c.ID, c.Function.Name, json.RawMessage(c.Function.Arguments)})
	}
	return said, nil
}

// nextMessage uses Anthropic's messages.
func (m model) nextMessage(ctx context.Context, system string, tools []tool, talk []message) (said message, err error) {
	turns, can := []object{}, []object{}
	for _, t := range tools {
		can = append(can, object{"name": t.name, "description": t.description, "input_schema": t.schema})
	}
	for _, t := range talk {
		role, content := "user", []object{}
		if t.model {
			role = "assistant"
		}
		for _, r := range t.results {
			content = append(content, object{"type": "tool_result", "tool_use_id": r.id, "content": r.text})
		}
		if t.text != "" {
			content = append(content, object{"type": "text", "text": t.text})
		}
		for _, c := range t.calls {
			content = append(content, object{"type": "tool_use", "id": c.id, "name": c.name, "input": c.input})
		}
		turns = append(turns, object{"role": role, "content": content})
	}
	var out struct {
		Content []struct {
			Type, Text, ID, Name string
			Input                json.RawMessage
		}
	}
	if err := m.post(ctx, object{"model": m.name, "max_tokens": 8192, "system": system, "messages": turns, "tools": can}, &out); err != nil {
		return said, err
	}
	said.model = true
	for _, b := range out.Content {
		switch b.Type {
		case "text":
			said.text += b.Text
		case "tool_use":
			said.calls = append(said.calls, call{b.ID, b.Name, b.Input})
		}
	}
	return said, nil
}
