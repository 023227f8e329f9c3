# METADATA
# title: LLM providers
# description: |
#   What a request means to OpenAI, Anthropic, Google, Azure OpenAI, Amazon Bedrock
#   and Mistral: inference, the list of models, data that stays there, or the
#   administration of the account.
#
#     deny contains "inference only" if {
#     	input.phase == "request"
#     	llm.provider
#     	not llm.inference
#     }
#
#   Every rule is about input. What is not recognised is undefined: write what may
#   pass, not what may not. What keeps data or administers is recognised generously.
#   A host of one's own that speaks OpenAI's API is named in data.library.llm.hosts,
#   as {"vllm.corp.example": "openai"}.
package sallyport.library.llm

# contact is the lookup of, and the connection to, a provider.
contact if {
	input.phase in {"dns", "connect"}
	provider
}

provider := {
	"api.openai.com": "openai",
	"api.anthropic.com": "anthropic",
	"generativelanguage.googleapis.com": "google",
	"aiplatform.googleapis.com": "vertex",
	"api.mistral.ai": "mistral",
	"codestral.mistral.ai": "mistral",
}[input.destination.host] if {
	true
} else := data.library.llm.hosts[input.destination.host] if {
	true
} else := name if {
	regex.match(`\.(?:googleapis|openai\.azure|amazonaws)\.com$`, input.destination.host) # most are none of them

	# "Vertex AI locations"; "Azure OpenAI REST API reference"; "Amazon Bedrock
	# endpoints and quotas".
	some [name, pattern] in [
		["vertex", `^[a-z]+-[a-z]+[0-9]+-aiplatform\.googleapis\.com$`],
		["azure", `^[a-z0-9-]+\.openai\.azure\.com$`],
		["bedrock", `^bedrock-runtime(-fips)?\.[a-z0-9-]+\.amazonaws\.com$`],
	]
	regex.match(pattern, input.destination.host)
}

# resource is whose Azure OpenAI it is.
resource := split(input.destination.host, ".")[0] if provider == "azure"

# inference asks a model, and leaves nothing behind that a path could lead to. Its
# body may say otherwise (OpenAI's store, Anthropic's containers).
inference if {
	input.request.method == "POST"
	regex.match(asks[provider], input.request.path)
}

asks := {
	# platform.openai.com, "API reference".
	"openai": `^/v1/(?:chat/completions|completions|responses|embeddings|moderations|images/(?:generations|edits|variations)|audio/(?:speech|transcriptions|translations))$`,
	# docs.anthropic.com, "Messages", "Count Message tokens", "Text Completions".
	"anthropic": `^/v1/(?:messages|messages/count_tokens|complete)$`,
	# ai.google.dev, "Gemini API reference" and "OpenAI compatibility".
	"google": `^/v1(?:beta|alpha)?/(?:(?:models|tunedModels)/[\w.-]+:(?:generateContent|streamGenerateContent|countTokens|embedContent|batchEmbedContents|predict)|openai/(?:chat/completions|embeddings))$`,
	# cloud.google.com, "Vertex AI API, projects.locations.publishers.models".
	"vertex": `^/v1(?:beta1)?/projects/[\w.:-]+/locations/[\w-]+/publishers/[\w-]+/models/[\w.@-]+:(?:generateContent|streamGenerateContent|countTokens|predict|rawPredict|streamRawPredict)$`,
	# learn.microsoft.com, "Azure OpenAI REST API reference" and "v1 API".
	"azure": `^/openai/(?:deployments/[\w.-]+|v1)/(?:chat/completions|completions|responses|embeddings|images/(?:generations|edits)|audio/(?:speech|transcriptions|translations))$`,
	# "Amazon Bedrock API Reference", Amazon Bedrock Runtime.
	"bedrock": `^/model/(?:arn:aws[\w-]*:bedrock:[\w:-]*(?:/|%2F))?[\w.:-]+/(?:invoke|invoke-with-response-stream|converse|converse-stream|count-tokens)$`,
	# docs.mistral.ai, "API".
	"mistral": `^/v1/(?:chat/completions|fim/completions|agents/completions|embeddings|moderations|chat/moderations|classifications|chat/classifications|ocr)$`,
}

# model is the model that is asked, where the path says it: with Google and Amazon
# it does, with Azure it is the deployment's name. Elsewhere it is in the body.
model := replace(name, "%2F", "/") if {
	some [_, name] in regex.find_all_string_submatch_n(
		{
			"google": `^/v1(?:beta|alpha)?/(?:models|tunedModels)/([\w.-]+)(?::\w+)?$`,
			"vertex": `/models/([\w.@-]+):\w+$`,
			"azure": `^/openai/deployments/([\w.-]+)/.+$`,
			"bedrock": `^/model/((?:arn:aws[\w-]*:bedrock:[\w:-]*(?:/|%2F))?[\w.:-]+)/[a-z-]+$`,
		}[provider],
		input.request.path,
		1,
	)
}

# project is the Google Cloud project whose Vertex AI it is.
project := name if {
	provider == "vertex"
	some [_, name] in regex.find_all_string_submatch_n(`^/v1(?:beta1)?/projects/([\w.:-]+)/.+$`, input.request.path, 1)
}

# catalogue reads which models there are.
catalogue if {
	input.request.method == "GET"
	regex.match(
		{
			"openai": `^/v1/models(?:/[\w.:-]+)?$`,
			"anthropic": `^/v1/models(?:/[\w.:-]+)?$`,
			"google": `^/v1(?:beta|alpha)?/(?:models(?:/[\w.-]+)?|openai/models)$`,
			"azure": `^/openai/(?:v1/)?models(?:/[\w.-]+)?$`,
			"mistral": `^/v1/models(?:/[\w.:-]+)?$`,
		}[provider],
		input.request.path,
	)
}

# retained keeps data at the provider, or gives it back: files, batches, training,
# conversations. Another user of the same account can read it.
retained if regex.match(
	{
		"openai": `^/v1/(?:files|uploads|batches|fine_tuning|fine-tunes|assistants|threads|vector_stores|containers|evals|conversations|videos|responses/.+|chat/completions/.+)(?:/.*)?$`,
		"anthropic": `^/v1/(?:files|messages/batches|skills)(?:/.*)?$`,
		"google": `^(?:/upload)?/v1(?:beta|alpha)?/(?:files|cachedContents|corpora|fileSearchStores|batches|models/[^/]+:batchGenerateContent)(?:[/:].*)?$`,
		"azure": `^/openai/(?:v1/)?(?:files|uploads|batches|fine_tuning|assistants|threads|vector_stores|responses/.+)(?:/.*)?$`,
		"bedrock": `^/async-invoke(?:/.*)?$`,
		"mistral": `^/v1/(?:files|fine_tuning|batch|agents|conversations|libraries)(?:/.*)?$`,
	}[provider],
	input.request.path,
)

# administration is about keys, people and projects. OpenAI: "Administration";
# Anthropic: "Admin API".
administration if regex.match(
	{
		"openai": `^/v1/(?:organization|projects|usage|dashboard)(?:/.*)?$`,
		"anthropic": `^/v1/organizations(?:/.*)?$`,
	}[provider],
	input.request.path,
)

# And all that is asked of hosts which are there for it: "Amazon Bedrock endpoints",
# control plane; "Azure Resource Manager".
administration if {
	input.request
	regex.match(`^(?:bedrock(-fips)?\.[a-z0-9-]+\.amazonaws\.com|management\.azure\.com)$`, input.destination.host)
}
