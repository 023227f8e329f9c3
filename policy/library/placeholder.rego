package sallyport.library.placeholder
