package sallyport.team.models

import data.sallyport.library.llm

# Files, batches and training stay in the account, where another sandbox reads them;
# keys and people are no business of a sandbox.
deny contains "inference and the list of models only" if {
	input.request
	llm.provider
	not llm.inference
	not llm.catalogue
}

deny contains sprintf("%s is not one of this policy's models", [llm.model]) if {
	llm.inference
	models := data.models[llm.provider]
	not llm.model in models
}

# Where a model is asked that no path names, as by Gemini's form of OpenAI's API.
deny contains "the model must be in the path" if {
	llm.inference
	data.models[llm.provider]
	not llm.model
}
