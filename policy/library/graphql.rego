# METADATA
# title: GraphQL
# description: |
#   What a GraphQL request asks for. A rule of sallyport.yaml has to ask for the body:
#
#     egress:
#     - {name: graph, destination: api.example.com, paths: [/graphql], body: {graphql: 64KiB}}
#
#     deny contains "the API is for reading the viewer" if {
#     	input.destination.host == "api.example.com"
#     	input.request.path == "/graphql"
#     	not graphql.only({"query"}, {"viewer"})
#     }
#
#   Everything here says what may pass, of all operations of a request, whichever its
#   operationName picks. Where the body is not seen, it is undefined.
package sallyport.library.graphql

# reads is true where nothing is changed and nothing subscribed to.
reads if {
	count(operations) > 0
	every operation in operations {
		operation.type == "query"
	}
}

# only is true where operations are of some types and select no other than some
# fields of the root type. Introspection is the fields __schema and __type.
only(types, fields) if {
	count(operations) > 0
	every operation in operations {
		operation.type in types
		every field in operation.fields {
			field in fields
		}
	}
}

operations := input.request.body.graphql.operations
