# METADATA
# title: Model Context Protocol
# description: |
#   What a message to an MCP server asks for (modelcontextprotocol.io, JSON-RPC 2.0 over
#   Streamable HTTP). A rule of sallyport.yaml has to ask for the body:
#
#     egress:
#     - {name: tools, destination: mcp.example.com, methods: [POST], paths: [/mcp], body: {json: 256KiB}}
#     - {name: stream, destination: mcp.example.com, methods: [GET, DELETE], paths: [/mcp]}
#
#     deny contains "only search may be called" if {
#     	input.destination.host == "mcp.example.com"
#     	input.request.method == "POST"
#     	not mcp.only({"search"})
#     }
#
#   Everything here says what may pass. What is not recognised is undefined, and so is
#   all of it where the body is not seen: write not mcp.only(…), and never a condition
#   on what must not be in a body.
package sallyport.library.mcp

# only is true where each message of the body, which may be a batch, calls one of some
# tools, or calls none: see harmless.
only(tools) if {
	count(messages) > 0
	every message in messages {
		allowed(message, tools)
	}
}

# messages lists those of the body. Up to version 2025-03-26 of the protocol there
# are batches; servers of later ones may take them still.
messages := input.request.body.json if {
	is_array(input.request.body.json)
} else := [input.request.body.json] if {
	is_object(input.request.body.json)
}

# tools is what the messages call.
tools := {message.params.name |
	some message in messages
	message.method == "tools/call"
}

# harmless are the methods that agree on how to talk and list what there is.
harmless := {
	"initialize",
	"ping",
	"tools/list",
	"notifications/initialized",
	"notifications/cancelled",
	"notifications/progress",
	"notifications/roots/list_changed",
}

allowed(message, tools) if {
	request(message)
	message.method == "tools/call"
	is_string(message.params.name)
	message.params.name in tools
}

allowed(message, _) if {
	request(message)
	message.method in harmless
}

allowed(message, _) if response(message)

# request is a request or a notification, in the one form that it has: a server that
# takes others might find another method in it.
request(message) if {
	message.jsonrpc == "2.0"
	is_string(message.method)
	object.keys(message) - {"jsonrpc", "id", "method", "params"} == set()
}

# response answers what the server has asked.
response(message) if {
	message.jsonrpc == "2.0"
	object.keys(message) in {{"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"}}
}
