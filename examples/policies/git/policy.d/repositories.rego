package sallyport.team.repositories

import data.sallyport.library.git

# What is not known to be meant is denied: a page, a gist, a call about an account.
deny contains "only the repositories of this policy, to read or to write" if {
	input.phase == "request"
	input.destination.host in {"github.com", "api.github.com", "codeload.github.com"}
	not meant
}

meant if {
	reading
	git.repo in data.repositories.read
}

meant if {
	writing
	git.repo in data.repositories.write[input.sandbox.tags.team]
}

reading if git.fetch

reading if git.download

reading if git.api_read

writing if git.push

# Issues and pull requests, and nothing about the repository itself.
writing if {
	git.api_write
	input.request.method in {"POST", "PATCH"}
	regex.match(`^/repos/[^/]+/[^/]+/(issues|pulls)(/|$)`, input.request.path)
}

# A push to the main branch cannot be told from another here; a person is asked
# about those to the documentation.
approve contains "a push to the documentation is read by a person first" if {
	git.push
	git.repo == "acme/docs"
}
