package ssh

import (
	"errors"
	"strings"

	"sallyport/gateway/wire"
	"sallyport/policy"
	"sallyport/policy/urlpath"
)

// errPath says why the repository of a command is refused. A server may take what is left
// out here for another repository than the policy has seen.
var errPath = errors.New("the repository's path is not plain: write letters, digits and ._-+@,=: between single slashes, without ~ and ..")

// gitCommands are the commands that name a repository.
var gitCommands = []string{policy.SSHUploadPack, policy.SSHReceivePack, policy.SSHUploadArchive}

// maxCommand bounds a command, in bytes.
const maxCommand = 32 << 10

// parse reads the command of an exec request (RFC 4254, section 6.5). It returns what is to
// be decided, and the command that is sent where that is allowed: of a repository one
// that is written here, so that the server reads what was decided.
func parse(line string) (r wire.Request, command string, err error) {
	name, rest, _ := strings.Cut(line, " ")
	if sub, after, _ := strings.Cut(rest, " "); name == "git" {
		name, rest = "git-"+sub, after
	}
	for _, git := range gitCommands {
		if name != git {
			continue
		}
		r = wire.Request{Method: git}
		if r.Path, err = repository(rest); err != nil {
			return r, "", err
		}
		return r, git + " '" + r.Path + "'", nil
	}
	if len(line) > maxCommand || strings.IndexByte(line, 0) >= 0 {
		return wire.Request{Method: policy.SSHExec, Path: "/"}, "", errors.New("the command is too long, or has a zero byte in it")
	}
	return wire.Request{Method: policy.SSHExec, Path: "/", Command: line}, line, nil
}

// repository reads the argument of a command of git: one word, perhaps in single quotes.
// Its path is from the root, as hosts of many users have it: org/repo is /org/repo.
func repository(word string) (string, error) {
	if bare, quoted := strings.CutPrefix(word, "'"); quoted {
		var closed bool
		if word, closed = strings.CutSuffix(bare, "'"); !closed {
			return "", errPath
		}
	}
	const longest = 1 << 10 // bytes
	path := "/" + strings.TrimSuffix(strings.TrimPrefix(word, "/"), "/")
	if len(path) > longest || path == "/" {
		return "", errPath
	}
	for i := range len(path) {
		c := path[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("/._-+@,=:", c) < 0 {
			return "", errPath
		}
	}
	for name := range strings.SplitSeq(path[1:], "/") {
		if name == "" || name == "." || name == ".." {
			return "", errPath
		}
	}
	if urlpath.CheckNormalized(path) != nil {
		return "", errPath
	}
	return path, nil
}
