package sallyport.team.previews

# A deny that says nothing of phases would speak of what leaves, too.
deny contains "previews of frozen sandboxes are read only" if {
	input.phase == "inbound"
	input.sandbox.tags.frozen == "true"
	not input.request.method in {"GET", "HEAD"}
}
