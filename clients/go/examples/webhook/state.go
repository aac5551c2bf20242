package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// state is what must survive a restart: up to where answers were posted.
type state struct {
	path string

	// Seq is the last event that was dealt with, of the transcript TranscriptID.
	Seq          int64  `json:"seq,string"`
	TranscriptID string `json:"transcript_id"`
	// Waiting are messages before Seq that the agent has not read yet: message_id to delivery.
	Waiting map[string]string `json:"waiting"`
}

// openState reads the file; one that is not there is a beginning.
func openState(path string) (*state, error) {
	s := &state{path: path, Waiting: map[string]string{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("the state file %s is damaged: %w", path, err)
	}
	if s.Waiting == nil {
		// It said null.
		s.Waiting = map[string]string{}
	}
	return s, nil
}

// save replaces the file at once: a crash leaves the old one or the new one.
func (s *state) save() error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(s.path), ".webhook-*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), s.path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}
